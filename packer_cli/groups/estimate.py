"""Predicts the GPU-seconds of an epoch for a set of groups from the lengths, without a plan.

Groups are added by increasing capacity. With C seconds for all samples up to the last group's capacity, the next group
gives `(1 - f) C + g`: a share f of all shorter samples fills its packs, which cost g.

These approximations do not apply to a plan (`hbpack simulate`):

- A group's own samples need as many packs as Martello and Toth's L2 bound at four thresholds; or, if there are enough
  shorter samples, so many that `FREE_TO_FILL` of their space is free.
- Free space is filled to the token, with shorter samples in the mix of all shorter ones.
- Packs are dealt to iterations by decreasing work. Ranks wait only because of samples over half the capacity, for the
  difference of these samples' squares, for which shorter samples cannot make up.
- Space that stays free costs nothing: rows are not padded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike

from packer_cli.cost.predict import CostModel
from packer_cli.plan.core.csr import count_lengths
from packer_cli.plan.core.groups import Group
from packer_cli.plan.core.types import Float64Array, Int64Array
from packer_cli.plan.strategies.by_group.arrange import FREE_TO_FILL

_THRESHOLDS = (1 / 3, 1 / 4, 1 / 8, 0.0)
"""Thresholds of the L2 bound, as shares of the capacity: shorter samples are ignored."""


class EpochModel:
    """Predicts epochs of given lengths on a given number of GPUs."""

    def __init__(self, cost: CostModel, sums: LengthSums, num_gpus: int) -> None:
        self.sums = sums
        self.num_gpus = num_gpus
        self._cost = cost
        parallel = cost.model_parallel and replace(cost.model_parallel, latency=0.0, constant=0.0)
        self._variable = replace(cost, constant=0.0, send_constant=0.0, model_parallel=parallel)

    def gpu_seconds(self, groups: Sequence[Group]) -> float:
        """Predict the GPU-seconds of an epoch. O(groups log u) for u different lengths.

        Args:
            groups: by increasing capacity; the last one holds the longest sample.
        """
        total, below = 0.0, 0
        for group in groups:
            share, seconds_of = self.packs_above(np.array([below]), group.capacity)
            total = float((1 - share[0]) * total + seconds_of(group)[0])
            below = group.capacity
        return total

    def packs_above(self, below: Int64Array, capacity: int) -> tuple[Float64Array, Callable[[Group], Float64Array]]:
        """Sum up a group's packs above each of k smaller capacities.

        Returns:
            float64[k], the share of all shorter samples that fill them; and their GPU-seconds (float64[k]) by how the
            group runs.
        """
        shorter = self.sums.up_to(below)
        samples, tokens, work = self.sums.up_to(capacity)[:, None] - shorter
        # As in the plan, more packs make room for shorter samples, for at most half of their tokens.
        roomy = np.minimum(tokens / (1 - FREE_TO_FILL), tokens + shorter[1] / 2) / capacity
        packs = np.where(samples > 0, np.maximum(self._num_packs(below, capacity), roomy), 0.0)
        free = np.maximum(0.0, packs * capacity - tokens)
        share = np.minimum(1.0, free / np.maximum(1.0, shorter[1])) * (shorter[1] > 0)
        tokens, work = tokens + share * shorter[1], work + share * shorter[2]

        def seconds_of(group: Group) -> Float64Array:
            num_ranks, how = group.num_dp_ranks(self.num_gpus), (group.layout, group.checkpoint_layers)
            # GPU-seconds per unit of attention work (token^2) and per token; seconds of a micro-batch without any.
            per_work, per_token = (
                float(self._variable.seconds(*each, *how)) * group.num_gpus for each in ((1.0, 0.0), (0.0, 1.0))
            )
            constant = float(self._cost.seconds(0.0, 0.0, *how))
            own: Float64Array = per_work * (work + self._waiting(below, capacity, num_ranks)) + per_token * tokens
            return own + np.ceil(packs / num_ranks) * self.num_gpus * constant

        return share, seconds_of

    def _waiting(self, below: Int64Array, capacity: int, num_ranks: int) -> Float64Array:
        """Compute the attention work that ranks wait for: samples over half the capacity, dealt to packs by decreasing
        length.

        In full iterations, the differences between neighbours add up to at most (ranks - 1) / 2 of the whole range. In
        the last iteration, ranks without such a sample wait for the others.
        """
        half = np.maximum(below, capacity // 2)
        samples, _, work = self.sums.up_to(capacity)[:, None] - self.sums.up_to(half)
        longest, shortest = (
            each.astype(np.float64) ** 2 for each in (self.sums.longest_up_to(capacity), self.sums.shortest_over(half))
        )
        differ = np.minimum(samples * longest - work, (num_ranks - 1) / 2 * (longest - shortest))
        idle = np.ceil(samples / num_ranks) * num_ranks - samples
        return np.where(samples > 0, np.maximum(0.0, differ) + idle * shortest, 0.0)

    def _num_packs(self, below: Int64Array, capacity: int) -> Float64Array:
        """Compute a lower bound (Martello and Toth's L2) on the packs of the samples in `(below, capacity]`."""
        half = np.maximum(below, capacity // 2)
        up_to_half = self.sums.up_to(half)
        large = self.sums.up_to(capacity)[:, None] - up_to_half
        bounds = []
        for threshold in _THRESHOLDS:
            least = max(int(capacity * threshold), 1)
            # No sample of at least `least` fits beside one over capacity - least.
            top = self.sums.up_to(np.maximum(half, capacity - least))
            beside = (top - up_to_half)[:2]
            room = beside[0] * capacity - beside[1]
            small = np.maximum(0.0, up_to_half[1] - self.sums.up_to(np.maximum(below, least - 1))[1])
            bounds.append(large[0] + np.maximum(0.0, small - room) / capacity)
        return np.asarray(np.maximum.reduce(bounds))


class LengthSums:
    """Number of samples, tokens and attention work of all samples up to a given length.

    Price: O(n + longest) once, then O(log u) per look-up, for u different lengths.
    """

    def __init__(self, lengths: ArrayLike) -> None:
        """Args: lengths, int[n], each at least 1."""
        count = count_lengths(np.asarray(lengths))
        self.lengths = np.flatnonzero(count)
        """int64[u]: the different lengths, increasing."""
        counts = count[self.lengths]
        tokens = counts * self.lengths
        # Floats, since the work of a billion long samples exceeds int64.
        sums = [np.cumsum(each, dtype=np.float64) for each in (counts, tokens, tokens * self.lengths.astype(float))]
        self._sums = np.concatenate([np.zeros((3, 1)), np.array(sums).reshape(3, -1)], axis=1)

    @property
    def longest(self) -> int:
        """Tokens of the longest sample; 0 if there are no samples."""
        return int(self.lengths[-1]) if len(self.lengths) else 0

    @property
    def num_samples(self) -> int:
        """Number of samples."""
        return int(self._sums[0, -1])

    def up_to(self, length: ArrayLike) -> Float64Array:
        """Sum up (samples, tokens, sum of s^2) of the samples of at most this length, float64[3, ...]."""
        return self._sums[:, np.searchsorted(self.lengths, length, side="right")]

    def longest_up_to(self, length: ArrayLike) -> Int64Array:
        """Find the longest length of at most `length`; 0 if there is none."""
        return np.append(0, self.lengths)[np.searchsorted(self.lengths, length, side="right")]

    def shortest_over(self, length: ArrayLike) -> Int64Array:
        """Find the shortest length over `length`; 0 if there is none."""
        return np.append(self.lengths, 0)[np.searchsorted(self.lengths, length, side="right")]

    def density_up_to(self, length: int) -> float:
        """Compute the attention work per token of the samples up to `length`; if there are none, of one sample of that
        length."""
        _, tokens, work = self.up_to(length)
        return float(work / tokens) if tokens else float(length)
