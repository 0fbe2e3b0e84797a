"""GPU-seconds of an epoch for a set of groups, predicted from the lengths alone, without a plan.

Groups are taken by rising capacity. With C seconds for all samples up to the last group's capacity, the next group
makes `(1 - f) C + g`: it takes a share f of all shorter samples as fillers, and g is what its packs cost.

Approximations, all of which a plan (`hbpack simulate`) does without:

- A group's own samples need as many packs as the L2 bound of Martello and Toth says, at four thresholds, or so many
  that `FOR_FILLERS` of their space is free, where there are shorter samples enough.
- Free space is filled to the token, with shorter samples in the mix of all shorter ones.
- Packs share iterations by falling work, and no pack waits but those whose longest sample is over half the capacity:
  ranks wait for the difference of these samples' squares, which no filler makes up.
- What is free and finds no filler costs nothing: rows are not padded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from packer_cli.cost.models import CostModel
from packer_cli.groups.lengths import LengthSums
from packer_cli.plan.arrange import FOR_FILLERS
from packer_cli.plan.types import Group

FloatArray = NDArray[np.float64]

_THRESHOLDS = (1 / 3, 1 / 4, 1 / 8, 0.0)
"""Of the capacity, for the L2 bound: samples below are as if they were not there."""


@dataclass(frozen=True, kw_only=True)
class _Range:
    """The packs of a group above each of k capacities, float64[k] unless said."""

    packs: FloatArray
    share: FloatArray
    """Of all shorter samples, those that are fillers here."""
    tokens: FloatArray
    """Fillers included, as in `work`."""
    work: FloatArray
    large: FloatArray
    """float64[3, k], samples, tokens and work of the group's own samples over half the capacity."""
    longest: FloatArray
    """Squared length of the longest own sample, float64."""
    shortest: FloatArray
    """Squared length of the shortest that is over half the capacity."""

    def waiting(self, num_ranks: int) -> FloatArray:
        """Attention work that ranks wait for, of samples over half the capacity in packs dealt by falling length.

        In whole iterations neighbours differ, between them all, by no more than (ranks - 1) / 2 of the whole range;
        beside the last few samples the other ranks do nothing of the kind.
        """
        samples, _, work = self.large
        differ = np.minimum(samples * self.longest - work, (num_ranks - 1) / 2 * (self.longest - self.shortest))
        alone = np.ceil(samples / num_ranks) * num_ranks - samples
        return np.where(samples > 0, np.maximum(0.0, differ) + alone * self.shortest, 0.0)


class EpochModel:
    """Predicts epochs of some lengths on some GPUs."""

    def __init__(self, cost: CostModel, sums: LengthSums, num_gpus: int) -> None:
        self.sums = sums
        self.num_gpus = num_gpus
        self._cost = cost
        self._variable = replace(cost, constant=0.0, send_constant=0.0)

    def gpu_seconds(self, groups: Sequence[Group]) -> float:
        """Of an epoch, seconds times GPUs. O(groups log u).

        Args:
            groups: by rising capacity; the last one holds the longest sample.
        """
        total, below = 0.0, 0
        for group in groups:
            share, own = self.add_group(np.array([below]), group)
            total = float((1 - share[0]) * total + own[0])
            below = group.capacity
        return total

    def add_group(self, below: NDArray[np.int64], group: Group) -> tuple[FloatArray, FloatArray]:
        """(f, g) of a group above each capacity in `below`, float64[k] both, see the module.

        Args:
            below: int64[k], the capacity of the group before, 0 where this is the first.
        """
        range_ = self.range_of(below, group.capacity)
        return range_.share, self.cost_of(range_, group)

    def range_of(self, below: NDArray[np.int64], capacity: int) -> _Range:
        """What is in the packs of a group, however it runs."""
        shorter = self.sums.up_to(below)
        samples, tokens, work = self.sums.up_to(capacity)[:, None] - shorter
        # More room for fillers, as the plan makes it, while they are at most half of what is shorter.
        roomy = np.minimum(tokens / (1 - FOR_FILLERS), tokens + shorter[1] / 2) / capacity
        packs = np.where(samples > 0, np.maximum(self._num_packs(below, capacity), roomy), 0.0)
        free = np.maximum(0.0, packs * capacity - tokens)
        share = np.minimum(1.0, free / np.maximum(1.0, shorter[1])) * (shorter[1] > 0)
        half = np.maximum(below, capacity // 2)
        return _Range(
            packs=packs,
            share=share,
            tokens=tokens + share * shorter[1],
            work=work + share * shorter[2],
            large=self.sums.up_to(capacity)[:, None] - self.sums.up_to(half),
            longest=self.sums.longest_up_to(capacity).astype(np.float64) ** 2,
            shortest=self.sums.shortest_over(half).astype(np.float64) ** 2,
        )

    def cost_of(self, range_: _Range, group: Group) -> FloatArray:
        """GPU-seconds, float64[k], of the packs of a group."""
        num_ranks = group.num_dp_ranks(self.num_gpus)
        a_work, a_token = self._rates(group)
        own: FloatArray = a_work * (range_.work + range_.waiting(num_ranks)) + a_token * range_.tokens
        return own + np.ceil(range_.packs / num_ranks) * self.num_gpus * self._constant(group)

    def _rates(self, group: Group) -> tuple[float, float]:
        """GPU-seconds for a unit of attention work, and for a token."""
        how = group.sp_size, group.checkpoint_layers
        a_work, a_token = (float(self._variable.seconds(*each, *how)) for each in ((1.0, 0.0), (0.0, 1.0)))
        return a_work * group.sp_size, a_token * group.sp_size

    def _constant(self, group: Group) -> float:
        """Seconds of a micro-batch, whatever is in it."""
        return float(self._cost.seconds(0.0, 0.0, group.sp_size, group.checkpoint_layers))

    def _num_packs(self, below: NDArray[np.int64], capacity: int) -> FloatArray:
        """A lower bound (Martello and Toth's L2) on the packs of the samples in `(below, capacity]`."""
        half = np.maximum(below, capacity // 2)
        up_to_half = self.sums.up_to(half)
        large = self.sums.up_to(capacity)[:, None] - up_to_half
        bounds = []
        for threshold in _THRESHOLDS:
            least = max(int(capacity * threshold), 1)
            # Next to those over capacity - least none that counts finds room.
            top = self.sums.up_to(np.maximum(half, capacity - least))
            beside = (top - up_to_half)[:2]
            room = beside[0] * capacity - beside[1]
            small = np.maximum(0.0, up_to_half[1] - self.sums.up_to(np.maximum(below, least - 1))[1])
            bounds.append(large[0] + np.maximum(0.0, small - room) / capacity)
        return np.maximum.reduce(bounds)
