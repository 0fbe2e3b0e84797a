"""OLMo-core's trainer on hbpack's packs and steps. ::

    hbpack pack chats.jsonl --tokenizer TOKENIZER --groups 16k:1 --gpus 2 --output OUT
    torchrun --nproc-per-node 2 olmo_core_trainer.py OUT --model olmo2_190M --max-steps 100 --output runs/olmo

OLMo-core needs rows of the same length and steps with the same number of tokens: `PackedDataLoader` fills both up with
pads without loss. All packs must have the same capacity. Run it again to continue from the newest checkpoint in
`--output`. The model's attention must support documents: FlashAttention does; on CPU, this script adds that to
OLMo-core's own attention. Without `--model` it trains a tiny Llama.
"""

import argparse
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from olmo_core.data import DataCollator, TextDataLoaderBase
from olmo_core.distributed.utils import get_rank, get_world_size
from olmo_core.nn.attention import AttentionBackendName
from olmo_core.nn.attention.backend import TorchAttentionBackend
from olmo_core.nn.transformer import TransformerConfig
from olmo_core.optim import AdamWConfig
from olmo_core.train import Duration, TrainerConfig, prepare_training_environment, teardown_training_environment
from olmo_core.train.callbacks import Callback, CheckpointerCallback
from olmo_core.train.train_module import TransformerDataParallelConfig, TransformerTrainModule

from packer_cli.loader import PackedDataset


class PackedDataLoader(TextDataLoaderBase):
    """One batch is this rank's part of an optimizer step: its rows, each filled up to the capacity.

    ===============  =======================================================================
    `input_ids`      int64 [rows, capacity]
    `label_mask`     bool [rows, capacity]: whether the model must predict the token
    `doc_lens`       int32 [rows, n]: tokens of each sample, the row's pads last; 0 after them
    `max_doc_lens`   list of int
    `step_tokens`    int64 [rows]: loss tokens of the whole step, over all ranks
    ===============  =======================================================================

    A step with fewer iterations than the epoch's greatest gets rows of pads.
    """

    def __init__(self, path: str, *, work_dir: str | Path, dp_rank: int, dp_world_size: int) -> None:
        self.dataset = PackedDataset(path, dp_rank, dp_world_size, pad_to="capacity")
        groups = [group for group in self.dataset.manifest["groups"] if group["num_packs"]]
        capacities = {group["capacity"] for group in groups}
        if len(capacities) > 1 or any(group["sp_size"] > 1 for group in groups):
            raise SystemExit("OLMo-core needs rows of one length, each on one GPU: pack with one group, CAPACITY:1")
        if any(group.get("loss_weight") for group in self.dataset.manifest["groups"]):
            raise SystemExit("OLMo-core's loss ignores the set's loss weights: pass loss_weights=False to do without")
        self.capacity = capacities.pop()
        self.first_epoch = self.dataset.epoch
        self._begin_epoch(self.first_epoch)
        super().__init__(
            collator=DataCollator(pad_token_id=0),  # Packs need no collator.
            work_dir=work_dir,
            global_batch_size=self.num_rows * self.capacity * dp_world_size,
            dp_world_size=dp_world_size,
            dp_rank=dp_rank,
        )

    def _begin_epoch(self, epoch: int) -> None:
        self.dataset.set_epoch(epoch)
        steps: dict[int, list[int]] = {}
        for iteration in range(len(self.dataset)):
            steps.setdefault(self.dataset.step_of(iteration), []).append(iteration)
        self.steps = list(steps.values())
        self.num_rows = max(map(len, self.steps))

    @property
    def total_batches(self) -> int:
        """Steps of the epoch."""
        return len(self.steps)

    def reshuffle(self, epoch: int | None = None, **kwargs: Any) -> None:
        """Begin an epoch, which OLMo-core counts from 1. The order is hbpack's."""
        self._epoch = epoch or 1
        self._begin_epoch(self.first_epoch + self._epoch - 1)
        self._global_batch_size = self.num_rows * self.capacity * self.dp_world_size

    def _iter_batches(self) -> Iterable[dict[str, Any]]:
        for iterations in self.steps[self.batches_processed :]:
            yield self._stack([self.dataset[i] for i in iterations])

    def _stack(self, batches: list[Any]) -> dict[str, Any]:
        missing = self.num_rows - len(batches)
        lengths = [batch["cu_seq_lens_q"].diff() for batch in batches]
        lengths += [torch.tensor([self.capacity], dtype=torch.int32)] * missing
        most = max(map(len, lengths))
        ids = torch.cat([batch["input_ids"] for batch in batches])
        mask = torch.cat([batch["labels"] for batch in batches]) != -100
        return {
            "input_ids": F.pad(ids, (0, 0, 0, missing)),
            "label_mask": F.pad(mask, (0, 0, 0, missing)),
            "doc_lens": torch.stack([F.pad(row, (0, most - len(row))) for row in lengths]),
            "max_doc_lens": [int(row.max()) for row in lengths],
            "step_tokens": torch.full((self.num_rows,), batches[0]["global_num_loss_tokens"]),
        }

    def get_mock_batch(self) -> dict[str, Any]:
        """Return the last step of the epoch, for the dry run: a loaded state may be past the first."""
        return self._stack([self.dataset[i] for i in self.steps[-1]])

    def state_dict(self) -> dict[str, Any]:
        """Return the place after the last batch returned. OLMo-core saves it with the trainer."""
        done = self.batches_processed
        following = self.steps[done][0] if done < len(self.steps) else len(self.dataset)
        return {"epoch": self._epoch, "batches_processed": done, "dataset": self.dataset.state_dict(following)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Resume; the state is the same on every rank. Refuses the state of another packed set."""
        self.dataset.load_state_dict(state_dict["dataset"])
        self.batches_processed = state_dict["batches_processed"]
        self._epoch = state_dict["epoch"]


class PackedTrainModule(TransformerTrainModule):
    """Divides by the loss tokens of the whole step. OLMo-core would average the means of the ranks."""

    def model_forward(self, input_ids: torch.Tensor, labels: torch.Tensor | None = None, **kwargs: Any) -> Any:
        """OLMo-core averages gradients over ranks, which the factor undoes."""
        kwargs["loss_div_factor"] = kwargs.pop("step_tokens")[0] / get_world_size()
        return super().model_forward(input_ids, labels, **kwargs)


def attend_within_documents(model: torch.nn.Module) -> None:
    """For CPU: give OLMo-core's SDPA backend, which refuses documents, a mask of [T, T] per row to separate them."""

    def forward(qkv: Any, cu_doc_lens: torch.Tensor | None = None, **_: Any) -> torch.Tensor:
        rows = qkv[0].shape[:2]
        one = torch.zeros(rows, dtype=torch.long)
        documents = one if cu_doc_lens is None else torch.repeat_interleave(cu_doc_lens.diff().long()).view(rows)
        mask = (documents[:, None, :, None] == documents[:, None, None]).tril()
        q, k, v = (part.transpose(1, 2) for part in qkv)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True).transpose(1, 2).contiguous()

    for module in model.modules():
        if isinstance(module, TorchAttentionBackend):
            module.forward = forward


class Report(Callback):
    """Prints a line for each step."""

    def __init__(self) -> None:
        self.start = time.perf_counter()

    def log_metrics(self, step: int, metrics: dict[str, float]) -> None:
        """Print the metrics of a step, reduced over ranks."""
        if get_rank() == 0 and "train/CE loss" in metrics:
            rate = self.trainer.global_batch_size / (time.perf_counter() - self.start)
            self.start = time.perf_counter()
            loss, norm = metrics["train/CE loss"], metrics["optim/total grad norm"]
            print(f"step {step} loss {loss:.6f} grad_norm {norm:.6f} tokens/s {rate:.0f}", flush=True)


def make_module(name: str | None, loader: PackedDataLoader, lr: float, device: torch.device) -> PackedTrainModule:
    """OLMo-core's model with this name, or a tiny one, set up for these rows."""
    vocab_size = loader.dataset.manifest["tokenizer"]["vocab_size"]
    cuda = device.type == "cuda"
    backend = AttentionBackendName.flash_2 if cuda else AttentionBackendName.torch
    if name is not None:
        config = getattr(TransformerConfig, name)(vocab_size, attn_backend=backend)
    else:
        config = TransformerConfig.llama_like(
            d_model=32, vocab_size=vocab_size, n_layers=2, n_heads=4, attn_backend=backend
        )
    model = config.build(init_device="meta" if cuda else "cpu")
    if not cuda:
        attend_within_documents(model)
    return PackedTrainModule(
        model,
        AdamWConfig(lr=lr, weight_decay=0.0),
        rank_microbatch_size=loader.capacity,  # One row.
        max_sequence_length=loader.capacity,
        dp_config=TransformerDataParallelConfig(name="fsdp" if cuda else "ddp") if get_world_size() > 1 else None,
        autocast_precision=torch.bfloat16 if cuda else None,
        max_grad_norm=1.0,
        device=device,
    )


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("packed", metavar="OUT", help="the folder that hbpack pack wrote")
    parser.add_argument("--model", help="a constructor of OLMo-core's TransformerConfig, such as olmo2_190M")
    parser.add_argument("--max-steps", type=int, default=100)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--save-every", type=int, default=100, help="steps")
    parser.add_argument("--lr", type=float, default=2e-5)
    args = parser.parse_args()

    cuda = torch.cuda.is_available()
    prepare_training_environment(seed=0, backend="cpu:gloo,cuda:nccl" if cuda else "gloo")
    device = torch.device("cuda" if cuda else "cpu")
    loader = PackedDataLoader(args.packed, work_dir=args.output, dp_rank=get_rank(), dp_world_size=get_world_size())
    trainer = TrainerConfig(
        save_folder=str(args.output),
        save_overwrite=True,
        max_duration=Duration.steps(args.max_steps),
        metrics_collect_interval=1,
        device=device.type,
        callbacks={
            "checkpointer": CheckpointerCallback(save_interval=args.save_every, ephemeral_save_interval=None),
            "report": Report(),
        },
    ).build(make_module(args.model, loader, args.lr, device), loader)
    trainer.fit()
    teardown_training_environment()


if __name__ == "__main__":
    main()
