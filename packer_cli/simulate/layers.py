"""The number of layers that each group checkpoints: the plan's, or else the fewest that fit."""

from __future__ import annotations

from dataclasses import dataclass

from packer_cli.cost.models import MemoryModel
from packer_cli.plan.core.groups import Group


@dataclass(frozen=True, kw_only=True)
class GroupLayers:
    """The checkpointed layers of a group's rows."""

    layers: int
    """Checkpointed layers that the prediction assumes."""
    needed: int | None
    """The fewest with which a full row fits, by the memory model; None if it never fits."""

    @property
    def fits(self) -> bool:
        """Whether a full row fits, by the memory model."""
        return self.needed is not None and self.needed <= self.layers


def choose_layers(group: Group, memory: MemoryModel) -> GroupLayers:
    """The group's own number if it names one, else the fewest that fit (HBP, algorithm 4), else all."""
    needed = memory.least_checkpoint_layers(group.capacity, group.layout)
    if group.checkpoint_layers:
        return GroupLayers(layers=min(group.checkpoint_layers, memory.num_layers), needed=needed)
    return GroupLayers(layers=memory.num_layers if needed is None else needed, needed=needed)
