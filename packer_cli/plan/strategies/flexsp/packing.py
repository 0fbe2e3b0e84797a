"""Packs a whole data set for groups of several degrees: each sample where its GPU-seconds are least.

From the highest degree down, a pack opens with the longest sample of its degree and takes, longest first, whatever
still fits: more of its own, and shorter samples that cost less here than at their own degree, where they would need
their share of another pack's constant seconds. Samples of the lowest degree, usually nearly all, are packed by
best-fit in seeded random order, so that who shares a pack is random; those over an eighth of the capacity come first,
because late long samples find no room.

Price: O(n + longest) a degree; 0.3 s for a million samples.
"""

from __future__ import annotations

from typing import NamedTuple, cast

import numpy as np
from numba import njit
from numpy.typing import NDArray

from packer_cli.plan.fill.pick import pick_samples
from packer_cli.plan.length_index import full_index, index_floor, index_remove
from packer_cli.plan.packing.best_fit import best_fit
from packer_cli.plan.packing.csr import group_by_pack, group_moves
from packer_cli.plan.sorting import count_lengths
from packer_cli.plan.strategies.flexsp.costs import DegreeCosts
from packer_cli.plan.streams import Stream, rng_state, shuffled
from packer_cli.plan.types import Int32Array, Int64Array

_LONG = 8
"""Samples over this part of the capacity are packed before the others."""
_ONE = cast(int, np.int64(1))


class MixedPacks(NamedTuple):
    """p packs of m samples, for groups of unlike degrees."""

    offsets: Int64Array
    """int64[p+1]"""
    samples: Int64Array
    """int64[m]"""
    kinds: Int64Array
    """int64[p]: index into `DegreeCosts.degrees`."""


def pack_by_degree(lengths: Int32Array, costs: DegreeCosts, seed: int, limit: float = np.inf) -> MixedPacks:
    """Pack samples (int32[n], each at most the greatest capacity) for the degrees of their least GPU-seconds.

    Args:
        limit: seconds; a sample that takes longer alone runs at a degree where it does not, or where it is fastest.
    """
    longest = int(lengths.max(initial=0))
    every = np.arange(longest + 1, dtype=np.int32)
    own, least = _kinds_within(every, costs, limit)
    is_left = np.ones(len(lengths), dtype=np.bool_)
    parts: list[MixedPacks] = []
    for kind in range(len(costs) - 1, -1, -1):
        degree = int(costs.degrees[kind])
        here = degree * (costs.quadratic[kind] * every + costs.linear[kind]) * every
        can_fill = (own < kind) & (here < least)
        is_lowest = kind == own[1:].min(initial=len(costs))
        if not (own[1:] == kind).any():
            continue
        if is_lowest:
            parts.append(_pack_lowest(lengths, is_left, int(costs.capacity[kind]), kind, seed))
            break
        count = count_lengths(lengths, longest, is_left)
        parts.append(_pack_longest_first(lengths, is_left, count, own == kind, can_fill, costs, kind, limit))
    sizes = np.concatenate([np.diff(part.offsets) for part in parts]) if parts else np.empty(0, dtype=np.int64)
    return MixedPacks(
        offsets=np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64),
        samples=np.concatenate([part.samples for part in parts]) if parts else np.empty(0, dtype=np.int64),
        kinds=np.concatenate([part.kinds for part in parts]) if parts else np.empty(0, dtype=np.int64),
    )


def _kinds_within(lengths: Int32Array, costs: DegreeCosts, limit: float) -> tuple[Int64Array, NDArray[np.float64]]:
    """As `DegreeCosts.gpu_seconds`, within the limit where that is possible."""
    kind, least = costs.gpu_seconds(lengths)
    if limit == np.inf:
        return kind, least
    length = lengths[None].astype(np.float64)
    quadratic, linear, constant = costs.rates[:, :, None]
    seconds = np.where(length <= costs.capacity[:, None], (quadratic * length + linear) * length + constant, np.inf)
    share = linear + constant / costs.capacity[:, None]
    gpu_seconds = costs.degrees[:, None] * (quadratic * length + share) * length
    gpu_seconds[seconds > limit] = np.inf
    found = gpu_seconds.argmin(axis=0)
    within = gpu_seconds.min(axis=0)
    fastest = seconds.argmin(axis=0)
    kind = np.where(np.isfinite(within), found, fastest)
    return kind, np.where(np.isfinite(within), within, least)


def _pack_lowest(lengths: Int32Array, is_left: NDArray[np.bool_], capacity: int, kind: int, seed: int) -> MixedPacks:
    own = np.flatnonzero(is_left)
    order = shuffled(len(own), rng_state(int(rng_state(seed, Stream.PACKING, kind)[0])))
    length = lengths[own[order]]
    is_long = length > capacity // _LONG
    falling = np.flatnonzero(is_long)[np.argsort(-length[is_long], kind="stable")]
    order = order[np.concatenate([falling, np.flatnonzero(~is_long)])]
    runs = lengths[own[order]]
    to_pack, number, num_packs = best_fit(
        runs, np.ones(len(runs), dtype=np.int64), capacity, np.empty(0, dtype=np.int64)
    )
    offsets, members = group_moves(to_pack, number, order, num_packs)
    return MixedPacks(offsets, own[members], np.full(num_packs, kind))


def _pack_longest_first(
    lengths: Int32Array,
    is_left: NDArray[np.bool_],
    count: Int64Array,
    is_own: NDArray[np.bool_],
    can_fill: NDArray[np.bool_],
    costs: DegreeCosts,
    kind: int,
    limit: float,
) -> MixedPacks:
    """Pack all samples left of the lengths that `is_own` marks, and fill with those that `can_fill` marks."""
    chosen = np.empty(count.sum(), dtype=np.int32)  # Untouched memory costs nothing.
    pack_of = np.empty(len(chosen), dtype=np.int64)
    usable = np.where(is_own | can_fill, count, 0)
    num_chosen, num_packs = _choose(
        usable.copy(),
        full_index((count > 0) & is_own),
        full_index(usable > 0),
        is_own,
        costs.rates[:, kind].copy(),
        int(costs.capacity[kind]),
        limit,
        pack_of,
        chosen,
    )
    chosen, pack_of = chosen[:num_chosen].copy(), pack_of[:num_chosen]
    found = pick_samples(chosen, lengths, is_left, len(count) - 1)
    is_left[found] = False
    offsets, members = group_by_pack(pack_of, np.arange(num_chosen), num_packs)
    return MixedPacks(offsets, found[members], np.full(num_packs, kind))


@njit(cache=True)
def _choose(
    left: NDArray[np.int64],
    own: tuple[NDArray[np.uint64], NDArray[np.int64]],
    usable: tuple[NDArray[np.uint64], NDArray[np.int64]],
    is_own: NDArray[np.bool_],
    rates: NDArray[np.float64],
    capacity: int,
    limit: float,
    pack_of: NDArray[np.int64],
    chosen: NDArray[np.int32],
) -> tuple[int, int]:
    """Choose lengths for packs: write to `pack_of` and `chosen`; returns `(lengths chosen, packs)`.

    Args:
        left: int64[longest + 1], samples of each length; counted down.
        own, usable: indices of the lengths that must be packed here, and of all that may be.
        rates: float64[3] of the degree.
        limit: seconds; only a pack's first sample may exceed it.
    """
    num_chosen, pack = 0, 0
    while True:
        length = index_floor(own[0], own[1], capacity)
        if length < 0:
            return num_chosen, pack
        room = capacity
        seconds = rates[2]
        while length > 0:
            chosen[num_chosen] = length
            pack_of[num_chosen] = pack
            num_chosen += 1
            left[length] -= 1
            if left[length] == 0:
                index_remove(usable[0], usable[1], length)
                if is_own[length]:
                    index_remove(own[0], own[1], length)
            room -= length
            seconds += (rates[0] * length + rates[1]) * length
            most = room
            if limit < np.inf:
                most = min(most, _longest_within(rates, limit - seconds))
            length = index_floor(usable[0], usable[1], most) if most > 0 else -_ONE
        pack += 1


@njit(cache=True, no_cpython_wrapper=True)
def _longest_within(rates: NDArray[np.float64], seconds: float) -> int:
    """The longest sample that adds at most so many seconds."""
    if seconds <= 0:
        return 0
    if rates[0] == 0:
        return int(min(seconds / rates[1], 2.0**31))
    half = rates[1] / (2 * rates[0])
    return int(min(np.sqrt(half * half + seconds / rates[0]) - half, 2.0**31))
