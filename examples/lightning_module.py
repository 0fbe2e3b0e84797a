"""Lightning: a module with manual optimization, and a loader that Lightning does not touch. ::

    hbpack pack chats.jsonl --tokenizer TOKENIZER --groups 16k:1,128k:2 --gpus 2 --output OUT
    torchrun --nproc-per-node 2 lightning_module.py OUT --model MODEL --max-steps 1000 --output runs/pl

Add `--resume` to continue from the newest checkpoint. Without `--model` it trains a tiny Llama, on CPU as well.
"""

import argparse
import os
import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader, IterableDataset
from transformers import AutoModelForCausalLM, LlamaConfig
from transformers.utils import is_flash_attn_2_available

from packer_cli.loader import PackedDataset
from packer_cli.loader.adapters.causal_lm import check_packed_rows, run_packed_rows, run_row
from packer_cli.loader.checkpointing import LayerCheckpointing
from packer_cli.loader.parallel import init_sp_groups
from packer_cli.loader.steps import Step, packed_steps


def make_model(path: str | None, vocab_size: int) -> Any:
    """The model at `path`, or a tiny one. Weights stay float32; only the computation uses bfloat16."""
    attention = "flash_attention_2" if torch.cuda.is_available() and is_flash_attn_2_available() else "sdpa"
    if path is not None:
        model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation=attention)
    else:
        config = LlamaConfig(
            vocab_size=vocab_size, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4
        )
        model = AutoModelForCausalLM.from_config(config, attn_implementation=attention)
    return model.train()


class Steps(IterableDataset):
    """One item is one optimizer step.

    Steps differ in their number of iterations, so `accumulate_grad_batches` does not fit. With whole steps as its
    batches, everything that Lightning counts (global_step, max_steps, every_n_train_steps) is right.
    """

    def __init__(self, dataset: PackedDataset) -> None:
        self.dataset = dataset
        self.state = dataset.state_dict()  # a pass begins here, after the last trained step

    def __iter__(self) -> Iterator[Step]:
        # Lightning fetches one item ahead, so the reading position is not the training position.
        self.dataset.load_state_dict(self.state)
        while True:
            yield from packed_steps(self.dataset)
            self.dataset.set_epoch(self.dataset.epoch + 1)


class PackedModule(lightning.LightningModule):
    """A model that trains on the steps of a packed set."""

    def __init__(self, model: Any, dataset: PackedDataset, lr: float) -> None:
        super().__init__()
        self.automatic_optimization = False  # automatic optimization runs one backward per item
        self.model, self.steps, self.lr = model, Steps(dataset), lr
        self.groups: Any = None  # of the ranks that share rows
        run_packed_rows(model)
        self.checkpointing = LayerCheckpointing(model)
        self.start = time.perf_counter()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """AdamW."""
        return torch.optim.AdamW(self.parameters(), lr=self.lr, weight_decay=0.0)

    def train_dataloader(self) -> DataLoader:
        """Items as they come, in this process; the data set shards itself."""
        return DataLoader(self.steps, batch_size=None)

    def on_train_start(self) -> None:
        """Make the process groups, and refuse a model that would mix the samples of a row."""
        if self.trainer.world_size > 1:
            self.groups = init_sp_groups(self.steps.dataset.replicas)
        check_packed_rows(self.model, self.device)

    def transfer_batch_to_device(self, batch: Any, device: Any, index: int) -> Any:
        """Rows move when they run."""
        return batch

    def training_step(self, step: Step, index: int) -> None:
        """One optimizer step."""
        world_size, totals = self.trainer.world_size, torch.zeros(2, device=self.device)
        for batch in step.batches:
            self.checkpointing.set(batch["checkpoint_layers"])
            group = None if self.groups is None else self.groups.for_batch(batch)
            # Only the last backward of the step exchanges gradients.
            is_last = batch is step.batches[-1]
            with nullcontext() if is_last or world_size == 1 else self.trainer.model.no_sync():
                # The token mean over the whole step, times the ranks, over which DDP averages.
                loss = run_row(self.model, batch, group, device=self.device, world_size=world_size)
                self.manual_backward(loss)
            num_tokens = torch.tensor(batch["input_ids"].numel(), device=self.device)
            totals += torch.stack([loss.detach() / world_size, num_tokens])

        optimizer = self.optimizers()
        norm = torch.nn.utils.clip_grad_norm_(self.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        self.steps.state = step.state

        loss, num_tokens = self.trainer.strategy.reduce(totals, reduce_op="sum")
        rate, self.start = num_tokens / (time.perf_counter() - self.start), time.perf_counter()
        if self.trainer.is_global_zero:
            number = self.trainer.global_step
            print(f"step {number} loss {loss:.6f} grad_norm {norm:.6f} tokens/s {rate:.0f}", flush=True)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Lightning saves weights, optimizer and counters; add the place in the data."""
        checkpoint["hbpack"] = self.steps.state

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Called before Lightning creates the loader, which refuses the state of another packed set."""
        self.steps.state = checkpoint["hbpack"]


def newest_checkpoint(folder: Path) -> Path:
    """The last one; Lightning names a file when it is complete."""
    found = list(folder.glob("step-*.ckpt"))
    if not found:
        raise SystemExit(f"no checkpoint in {folder}: start without --resume")
    return max(found, key=lambda path: int(path.stem.removeprefix("step-")))


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("packed", metavar="OUT", help="the folder that hbpack pack wrote")
    parser.add_argument("--model", help="a transformers model; default: a tiny Llama")
    parser.add_argument("--max-steps", type=int, default=100)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--save-every", type=int, default=100, help="steps")
    parser.add_argument("--lr", type=float, default=2e-5)
    args = parser.parse_args()

    # Read torchrun's variables, because the data set is opened before Lightning starts its processes.
    rank = int(os.environ.get("RANK", 0))
    world_size, local = (int(os.environ.get(key, 1)) for key in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"))
    dataset = PackedDataset(args.packed, rank, world_size)

    torch.manual_seed(0)
    module = PackedModule(make_model(args.model, dataset.manifest["tokenizer"]["vocab_size"]), dataset, args.lr)
    checkpoints = ModelCheckpoint(
        args.output,
        filename="step-{step}",
        auto_insert_metric_name=False,
        every_n_train_steps=args.save_every,
        save_top_k=-1,
        enable_version_counter=False,
    )
    trainer = lightning.Trainer(
        max_steps=args.max_steps,
        accelerator="auto",
        devices=local,
        num_nodes=world_size // local,
        strategy="ddp" if world_size > 1 else "auto",
        precision="bf16-mixed" if torch.cuda.is_available() else "32-true",
        use_distributed_sampler=False,  # it would shard the steps again
        callbacks=[checkpoints],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, ckpt_path=newest_checkpoint(args.output) if args.resume else None)
    trainer.save_checkpoint(args.output / f"step-{trainer.global_step}.ckpt")
    if trainer.is_global_zero:
        module.model.save_pretrained(args.output / "final")


if __name__ == "__main__":
    main()
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
