"""VeOmni's text trainer on hbpack's packs and steps. ::

    hbpack pack chats.jsonl --tokenizer TOKENIZER --groups 16k:1 --gpus 8 --output OUT
    torchrun --nproc-per-node 8 veomni_trainer.py config.yaml --data.train_path OUT

`config.yaml` is VeOmni's own, with `attn_implementation: flash_attention_2`. Like VeOmni's own loader,
`PackedDataLoader` gives the trainer a list of micro-batches for each step, from VeOmni's collator, which takes the
borders of samples from `position_ids`. VeOmni divides by the loss tokens of all ranks and micro-batches, so the loss
is that of the step.
"""

from collections.abc import Callable, Iterator
from typing import Any

from veomni.arguments import parse_args
from veomni.distributed.parallel_state import get_parallel_state
from veomni.trainer.text_trainer import TextTrainer, VeOmniArguments

from packer_cli.loader import PackedDataset
from packer_cli.loader.steps import packed_steps

Microbatch = dict[str, Any]


class PackedDataLoader:
    """The loader of VeOmni's trainer: one item per step, the collated packs of its iterations."""

    def __init__(self, dataset: PackedDataset, collate: Callable[[list[Microbatch]], Microbatch]) -> None:
        self.dataset = dataset
        self.collate = collate

    def __len__(self) -> int:
        """Count the steps of the epoch."""
        return len({self.dataset.step_of(iteration) for iteration in range(len(self.dataset))})

    def __iter__(self) -> Iterator[list[Microbatch]]:
        """Yield the rest of the epoch."""
        for step in packed_steps(self.dataset):
            keys = ("input_ids", "labels", "position_ids")
            yield [self.collate([{key: batch[key][0] for key in keys}]) for batch in step.batches]

    def set_epoch(self, epoch: int) -> None:
        """Start an epoch, or keep the place if a state within it was loaded; the trainer calls this before each
        epoch."""
        if epoch != self.dataset.epoch:
            self.dataset.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return the place after the last step returned; nothing is read ahead."""
        return self.dataset.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume; the state is the same on every rank. Refuses the state of another packed set."""
        self.dataset.load_state_dict(state)


class PackedTrainer(TextTrainer):
    """VeOmni's trainer, with its data path replaced."""

    def _build_data_transform(self) -> None:
        """Packs need no transform. Replace the methods that the trainer calls next, to build its data."""
        self.base._build_dataset = self._build_dataset
        self.base._build_dataloader = self._build_dataloader

    def _build_dataset(self) -> None:
        state = get_parallel_state()
        dataset = PackedDataset(self.base.args.data.train_path, state.dp_rank, state.dp_size)
        if state.sp_enabled or any(group["sp_size"] > 1 for group in dataset.manifest["groups"]):
            raise SystemExit("this recipe gives each GPU its own rows: pack with CAPACITY:1, and set ulysses_size 1")
        if any(group.get("loss_weight") for group in dataset.manifest["groups"]):
            raise SystemExit("VeOmni's loss ignores the set's loss weights: pass loss_weights=False to do without")
        self.base.train_dataset = dataset

    def _build_dataloader(self) -> None:
        base = self.base
        base.train_dataloader = PackedDataLoader(base.train_dataset, base.collate_fn)
        base.args._train_steps = len(base.train_dataloader)
        base.train_steps = base.args.train_steps


def main() -> None:
    """Train."""
    PackedTrainer(parse_args(VeOmniArguments)).train()


if __name__ == "__main__":
    main()
