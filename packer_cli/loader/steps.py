"""A plan's optimizer steps, for loops that accumulate gradients."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from packer_cli.loader.dataset import PackedDataset
from packer_cli.loader.formats.base import is_list_of_batches


@dataclass(frozen=True, kw_only=True)
class Step:
    """What a rank runs between two optimizer steps."""

    batches: list[Any]
    """Its micro-batches, at least one. Run forward and backward of each."""
    state: dict[str, Any]
    """The data set's state when the step is done; save it with the weights."""
    epoch: int
    """From 0 on."""
    number: int
    """In the epoch, from 0 on."""


def packed_steps(dataset: PackedDataset) -> Iterator[Step]:
    """The steps from the data set's position to the end of its epoch. ::

        for step in packed_steps(dataset):
            for batch in step.batches:
                loss = stable_loss(batch_losses(model(...).logits, batch).sum(), batch, world_size=world_size)
                loss.backward()
            optimizer.step()
            optimizer.zero_grad()

    Steps have unlike numbers of micro-batches, so a trainer that accumulates a fixed number would step elsewhere than
    the plan says. `load_state_dict(step.state)` resumes after a step.
    """
    batches: list[Any] = []
    for item in dataset:
        batches += item if is_list_of_batches(item) else [item]
        last = batches[-1]
        if dataset.step_of(last["iteration"] + 1) != last["step"]:
            state = dataset.state_dict(last["iteration"] + 1)
            yield Step(batches=batches, state=state, epoch=last["epoch"], number=last["step"])
            batches = []
