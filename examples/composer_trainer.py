"""MosaicML Composer, with hbpack's steps in place of its own microbatches. ::

    hbpack pack chats.jsonl --tokenizer TOKENIZER --groups 16k:1 --gpus 2 --output OUT
    torchrun --nproc-per-node 2 composer_trainer.py OUT --model MODEL --max-steps 1000 --output runs/composer

Composer splits each batch of its data loader into microbatches. By default, it silently slices every tensor along its
first dimension, including `cu_seq_lens_q`, so that a row keeps only the first border of its samples.
Here, a batch is a whole step, a list of rows, and `split_batch` returns the rows. Add `--resume` to continue from the
newest checkpoint.
"""

import argparse
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from composer import Callback, ComposerModel, DataSpec, Trainer
from composer.utils import dist
from torch.utils.data import DataLoader, IterableDataset
from transformers import AutoModelForCausalLM
from transformers.utils import is_flash_attn_2_available

from packer_cli.loader import PackedDataset
from packer_cli.loader.layer_checkpointing import LayerCheckpointing
from packer_cli.loader.steps import packed_steps

MODEL_KEYS = ("input_ids", "position_ids", "seq_idx", "cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k")
OTHER_KEYS = ("labels", "checkpoint_layers", "num_loss_tokens")
Microbatch = dict[str, Any]


class Steps(IterableDataset):
    """One item is one optimizer step: the batches of its iterations. One pass is the rest of an epoch."""

    def __init__(self, dataset: PackedDataset) -> None:
        self.dataset = dataset

    def __iter__(self) -> Iterator[list[Microbatch]]:
        for step in packed_steps(self.dataset):
            yield [{key: batch[key] for key in (*MODEL_KEYS, *OTHER_KEYS)} for batch in step.batches]
        self.dataset.set_epoch(self.dataset.epoch + 1)

    def state_dict(self, num_samples: int, from_beginning: bool) -> dict[str, Any]:
        """Return the state for Composer's checkpoints. Nothing is read ahead, so the data set knows the place."""
        return self.dataset.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume; the state is the same on every rank. Refuses the state of another packed set."""
        self.dataset.load_state_dict(state)


def split_batch(step: list[Microbatch], microbatch_size: int | float) -> Sequence[Microbatch]:
    """Return the rows of a step, which already are microbatches."""
    return step


def num_rows(batch: list[Microbatch] | Microbatch) -> int:
    """Count the rows of a step, or 1 for one of its rows; Composer needs both."""
    return len(batch) if isinstance(batch, list) else 1


def num_tokens(batch: list[Microbatch] | Microbatch) -> dict[str, int]:
    """Count the tokens by which Composer weights rows (`loss_generating`), and all that it counts."""
    rows = batch if isinstance(batch, list) else [batch]
    return {
        "total": sum(row["input_ids"].numel() for row in rows),
        "loss_generating": sum(row["num_loss_tokens"] for row in rows),
    }


class PackedModel(ComposerModel):
    """A causal language model whose loss is the mean over a row's loss tokens."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model
        self.checkpointing = LayerCheckpointing(model)

    def forward(self, batch: Microbatch) -> torch.Tensor:
        """[1, t, vocabulary]."""
        self.checkpointing.set(batch["checkpoint_layers"])
        # use_cache=False: with a cache, SDPA ignores position_ids and merges the samples.
        return self.model(**{key: batch[key] for key in MODEL_KEYS}, use_cache=False).logits

    def loss(self, outputs: torch.Tensor, batch: Microbatch) -> torch.Tensor:
        """Composer multiplies by the row's share of the step's loss tokens. A row without any (a filler) gives 0."""
        labels = F.pad(batch["labels"], (0, 1), value=-100)[..., 1:]  # Each sample's first label is -100.
        total = F.cross_entropy(outputs.float().flatten(0, 1), labels.flatten(), ignore_index=-100, reduction="sum")
        return total / max(batch["num_loss_tokens"], 1)

    def eval_forward(self, batch: Microbatch, outputs: torch.Tensor | None = None) -> torch.Tensor:
        """Return the outputs for evaluation, which Composer may have already."""
        return self(batch) if outputs is None else outputs


class ClipAndReport(Callback):
    """Clips the gradients of each step, and prints a line."""

    def __init__(self) -> None:
        self.norm, self.start = 0.0, time.perf_counter()

    def after_train_batch(self, state: Any, logger: Any) -> None:
        """After the last backward of the step, before the optimizer."""
        self.norm = float(torch.nn.utils.clip_grad_norm_(state.model.parameters(), 1.0))

    def batch_end(self, state: Any, logger: Any) -> None:
        """After the optimizer."""
        done = state.timestamp.token - state.previous_timestamp.token
        rate, self.start = done.value / (time.perf_counter() - self.start), time.perf_counter()
        if dist.get_global_rank() == 0:
            loss = state.total_loss_dict["loss/train/total"]
            print(
                f"step {state.timestamp.batch.value} loss {loss:.6f} grad_norm {self.norm:.6f} tokens/s {rate:.0f}",
                flush=True,
            )


def newest_checkpoint(folder: Path) -> str:
    """Find the last checkpoint; Composer names a file when it is complete."""
    found = list(folder.glob("step-*.pt"))
    if not found:
        raise SystemExit(f"no checkpoint in {folder}: start without --resume")
    return str(max(found, key=lambda path: int(path.stem.removeprefix("step-"))))


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

    os.environ.setdefault("NODE_RANK", os.environ.get("GROUP_RANK", "0"))  # torchrun does not set it.
    cuda = torch.cuda.is_available()
    dist.initialize_dist("gpu" if cuda else "cpu")
    dataset = PackedDataset(args.packed, dist.get_global_rank(), dist.get_world_size())
    if any(group["sp_size"] > 1 for group in dataset.manifest["groups"]):
        raise SystemExit("groups that share rows need sequence parallelism, which Composer does not have")
    if any(group.get("loss_weight") for group in dataset.manifest["groups"]):
        raise SystemExit("Composer counts whole tokens, not their loss weights: pass loss_weights=False to do without")

    attention = "flash_attention_2" if is_flash_attn_2_available() else "sdpa"
    # Weights stay float32; only the computation uses bfloat16.
    inner = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32, attn_implementation=attention)
    model = PackedModel(inner)
    trainer = Trainer(
        model=model,
        train_dataloader=DataSpec(
            DataLoader(Steps(dataset), batch_size=None),
            split_batch=split_batch,
            get_num_samples_in_batch=num_rows,
            get_num_tokens_in_batch=num_tokens,
        ),
        optimizers=torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.0),
        max_duration=f"{args.max_steps}ba",
        device_train_microbatch_size=1,
        accumulate_train_batch_on_tokens=True,  # A token has the same weight in every row and on every rank.
        precision="amp_bf16" if cuda else "fp32",
        device="gpu" if cuda else "cpu",
        callbacks=[ClipAndReport()],
        load_path=newest_checkpoint(args.output) if args.resume else None,
        save_folder=str(args.output),
        save_filename="step-{batch}.pt",
        save_latest_filename=None,
        save_interval=f"{args.save_every}ba",
        progress_bar=False,
    )
    trainer.fit()
    if dist.get_global_rank() == 0:
        inner.save_pretrained(args.output / "final")
    trainer.close()


if __name__ == "__main__":
    main()
