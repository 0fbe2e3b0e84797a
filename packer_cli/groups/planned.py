"""Seconds of an epoch that is planned, by which groups are chosen; `groups.epoch` estimates them without a plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from packer_cli.config import PlanConfig
from packer_cli.config.resolve import resolve
from packer_cli.cost.models import GpuModel
from packer_cli.plan.build import build_plan
from packer_cli.plan.core.groups import Group
from packer_cli.plan.core.types import Int32Array, Pieces
from packer_cli.simulate.epoch import simulate

_MOST_PLANNED = 1_000_000
"""Samples; of more, every so many-th is planned."""


class EpochPlanner:
    """Plans the same samples with several sets of groups, each once."""

    def __init__(self, config: PlanConfig, model: GpuModel, lengths: Int32Array) -> None:
        """Plan nothing yet.

        Args:
            config: with any groups.
            lengths: int32[n], n > 0.
        """
        self._config, self._model = config, model
        some = lengths[:: -(-len(lengths) // _MOST_PLANNED)].copy()
        self._scale = int(lengths.sum(dtype=np.int64)) / int(some.sum(dtype=np.int64))
        self._pieces = Pieces(samples=None, start=np.zeros(len(some), dtype=np.int32), length=some)
        self._seconds: dict[tuple[Group, ...], float] = {}

    def seconds(self, groups: Sequence[Group]) -> float:
        """The predicted time of the first epoch with those of the groups that the strategy uses."""
        request = resolve(self._config.with_groups(groups)).request
        if request.groups not in self._seconds:
            plan = build_plan(self._pieces, replace(request, epochs=1))
            self._seconds[request.groups] = simulate(plan, self._model).seconds * self._scale
        return self._seconds[request.groups]
