"""Lightning on a packed set. ::

    hbpack pack chats.jsonl --tokenizer TOKENIZER --groups 16k:1,128k:2 --gpus 2 --output OUT
    torchrun --nproc-per-node 2 lightning_module.py OUT --model MODEL --max-steps 1000 --output runs/pl

Add `--resume` to continue from the newest checkpoint.
"""

import argparse
import os
from functools import partial
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.utilities import grad_norm
from transformers import AutoModelForCausalLM
from transformers.utils import is_flash_attn_2_available

from packer_cli.loader.adapters.lightning import PackedDataModule, PackedModule


class Print(lightning.Callback):
    """Prints each step."""

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        """Before gradients are clipped."""
        pl_module.log("grad_norm", grad_norm(pl_module, 2)["grad_2.0_norm_total"])

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Print a step on the first rank; Lightning calls this on each."""
        logs = trainer.callback_metrics
        if trainer.is_global_zero:
            print(
                f"step {trainer.global_step} loss {logs['train_loss']:.6f} grad_norm {logs['grad_norm']:.6f} "
                f"tokens/s {logs['tokens_per_second']:.0f}",
                flush=True,
            )


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("packed", metavar="OUT", help="the folder that hbpack pack wrote")
    parser.add_argument("--model", required=True, help="a transformers model: its folder, or its name on the Hub")
    parser.add_argument("--max-steps", type=int, default=100)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--save-every", type=int, default=100, help="steps")
    parser.add_argument("--lr", type=float, default=2e-5)
    args = parser.parse_args()

    attention = "flash_attention_2" if is_flash_attn_2_available() else "sdpa"
    # Weights stay float32; only the computation uses bfloat16.
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32, attn_implementation=attention)
    module = PackedModule(model, partial(torch.optim.AdamW, lr=args.lr, weight_decay=0.0))
    trainer = lightning.Trainer(
        max_steps=args.max_steps,
        devices=int(os.environ.get("LOCAL_WORLD_SIZE", 1)),  # as torchrun says
        num_nodes=int(os.environ.get("GROUP_WORLD_SIZE", 1)),
        strategy="ddp" if "WORLD_SIZE" in os.environ else "auto",
        precision="bf16-mixed" if torch.cuda.is_available() else "32-true",
        gradient_clip_val=1.0,
        callbacks=[ModelCheckpoint(args.output, every_n_train_steps=args.save_every, save_top_k=-1), Print()],
        logger=False,
        enable_progress_bar=False,
    )
    found = sorted(args.output.glob("*.ckpt"), key=os.path.getmtime)
    if args.resume and not found:
        parser.error(f"no checkpoint in {args.output}: start without --resume")
    trainer.fit(module, PackedDataModule(args.packed), ckpt_path=found[-1] if args.resume else None)
    trainer.save_checkpoint(args.output / f"step-{trainer.global_step}.ckpt")
    if trainer.is_global_zero:
        model.save_pretrained(args.output / "final")


if __name__ == "__main__":
    main()
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
