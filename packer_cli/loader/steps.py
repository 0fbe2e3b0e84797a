"""A plan's optimizer steps, for loops that accumulate gradients."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from packer_cli.loader.dataset import PackedDataset
from packer_cli.loader.formats.base import is_list_of_batches


class Step:
    """Micro-batches that a rank runs between two optimizer steps; `packed_steps` makes them. Arguments are attributes.

    Args:
        batches: its micro-batches, at least one. Run forward and backward of each.
        state: the data set's state when the step is done; save it with the weights.
        epoch: from 0 on.
        number: in the epoch, from 0 on.
        predicted_seconds: what the step takes by prediction, see `PackedDataset.predicted_seconds`.
    """

    # Not a dataclass, list or mapping: trainers would copy it, and move and cast its tensors.

    def __init__(
        self,
        *,
        batches: list[Any],
        state: dict[str, Any],
        epoch: int,
        number: int,
        predicted_seconds: float | None = None,
    ) -> None:
        self.batches, self.state, self.epoch, self.number = batches, state, epoch, number
        self.predicted_seconds = predicted_seconds

    @property
    def num_tokens(self) -> int:
        """Tokens that this rank runs, of batches in format "transformers": padding counts, other ranks' slices do not.

        Summed over ranks and divided by the time, this is the throughput.
        """
        return sum(batch["input_ids"].numel() for batch in self.batches)


def packed_steps(dataset: PackedDataset, begin: int | None = None, *, endless: bool = False) -> Iterator[Step]:
    """Yield the steps from an iteration to the end of the epoch. ::

        for step in packed_steps(dataset):
            for batch in step.batches:
                loss = stable_loss(batch_losses(model(...).logits, batch).sum(), batch, world_size=world_size)
                loss.backward()
            optimizer.step()
            optimizer.zero_grad()

    Steps have unlike numbers of micro-batches, so a trainer that accumulates a fixed number would step elsewhere than
    the plan says. `load_state_dict(step.state)` resumes after a step.

    Args:
        dataset: in any format.
        begin: the first iteration, 0 to `len(dataset)`; None: the data set's position.
        endless: whether to continue with the next epoch, without end.
    """
    batches: list[Any] = []
    for item in dataset if begin is None else dataset.iter_from(begin):
        batches += item if is_list_of_batches(item) else [item]
        last = batches[-1]
        if dataset.step_of(last["iteration"] + 1) != last["step"]:
            state = dataset.state_dict(last["iteration"] + 1)
            seconds = dataset.predicted_seconds(last["iteration"])
            yield Step(
                batches=batches, state=state, epoch=last["epoch"], number=last["step"], predicted_seconds=seconds
            )
            batches = []
    while endless:
        dataset.set_epoch(dataset.epoch + 1)
        yield from packed_steps(dataset, 0)
