"""TRL's SFTTrainer on a packed set. ::

    hbpack pack chats.jsonl --tokenizer TOKENIZER --groups 16k:1,128k:2 --gpus 2 --output OUT
    torchrun --nproc-per-node 2 trl_sft.py OUT --model MODEL --max-steps 1000 --output runs/sft

Add `--resume` to continue from the newest checkpoint.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from transformers.utils import is_flash_attn_2_available
from trl import SFTConfig, SFTTrainer

from packer_cli.loader.adapters.transformers import packed


class Print(TrainerCallback):
    """Prints each step."""

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **others: Any) -> None:
        """Print the log on the first rank; the Trainer calls this on each."""
        if "loss" in logs and state.is_world_process_zero:
            print(
                f"step {state.global_step} loss {logs['loss']:.6f} grad_norm {logs['grad_norm']:.6f} "
                f"tokens/s {logs['tokens_per_second']:.0f}",
                flush=True,
            )


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("packed", metavar="OUT", help="the folder that hbpack pack wrote")
    parser.add_argument("--model", required=True, help="a transformers model: its folder, or its name on the Hub")
    parser.add_argument("--tokenizer", help="default: the one that the set was made with, by its name in OUT")
    parser.add_argument("--max-steps", type=int, default=100)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--save-every", type=int, default=100, help="steps")
    parser.add_argument("--lr", type=float, default=2e-5)
    args = parser.parse_args()

    training = SFTConfig(
        output_dir=str(args.output),
        max_steps=args.max_steps,
        learning_rate=args.lr,
        lr_scheduler_type="constant",
        bf16=torch.cuda.is_available(),
        use_cpu=not torch.cuda.is_available(),
        logging_steps=1,
        save_steps=args.save_every,
        report_to="none",
        disable_tqdm=True,
    )
    attention = "flash_attention_2" if is_flash_attn_2_available() else "sdpa"
    # Weights stay float32; only the computation uses bfloat16.
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32, attn_implementation=attention)
    name = args.tokenizer or json.loads(Path(args.packed, "hbpack.json").read_text())["tokenizer"]["name"]
    if name is None or (Path(name).is_absolute() and not Path(name).exists()):
        parser.error(f"the set's tokenizer ({name or 'not named'}) is not on this machine: give --tokenizer PATH")
    tokenizer = AutoTokenizer.from_pretrained(name)  # whose padding token SFTTrainer takes, and which it saves
    trainer = packed(SFTTrainer)(
        model, training, train_dataset=args.packed, processing_class=tokenizer, callbacks=[Print()]
    )
    trainer.train(resume_from_checkpoint=args.resume)
    trainer.save_model(str(args.output / "final"))


if __name__ == "__main__":
    main()
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
