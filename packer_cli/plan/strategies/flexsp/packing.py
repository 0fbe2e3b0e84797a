"""The packs of a whole data set: each sample at the degree where it costs least.

A group of degree d is one of `GroupCosts.gpus`, which rise, as capacities do (FlexSP, arXiv 2412.01523, section 4.1).
From a `cost.models.CostModel` with n of L layers checkpointed, `again = 1 + recompute n / L` and
`resend = 1 + resend n / L`, its costs are::

    quadratic = cost.quadratic * again / d
    linear    = cost.linear * again / d + cost.send[d] * resend        (no send at d = 1)
    constant  = cost.constant + cost.send_constant                     (no send at d = 1)
    capacity  = d * tokens that fit one GPU

From the highest degree down, a pack opens with the longest sample of its degree and takes, longest first, whatever
still fits: more of its own, and shorter samples that cost less here than at their own degree, where they would need
their share of another pack's constant seconds. Samples of the lowest degree, usually nearly all, are packed by
best-fit in seeded random order, so that who shares a pack is random; those over an eighth of the capacity come first,
because late long samples find no room.

Price: O(n + longest) a degree; 0.3 s for a million samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from packer_cli.jit import njit
from packer_cli.plan.core.cost import GroupCosts
from packer_cli.plan.core.csr import ONE_EACH, count_lengths, group_by_pack, group_moves, ids_of
from packer_cli.plan.core.streams import Stream, rng_state, shuffled
from packer_cli.plan.core.types import BoolArray, Float64Array, Int8Array, Int32Array, Int64Array, as_ids
from packer_cli.plan.kernels.fill import pick_samples
from packer_cli.plan.kernels.length_index import LengthIndex, full_index, index_floor, index_remove
from packer_cli.plan.packing.best_fit import best_fit_each
from packer_cli.plan.strategies.flexsp.micro_batch import MicroBatch


def cheapest_degrees(
    lengths: NDArray[np.integer], costs: GroupCosts, limit: float = np.inf
) -> tuple[Int64Array, Float64Array]:
    """Return `(kind int64[n], GPU-seconds float64[n])` of each length at the degree where these are least.

    Counts a sample's share of the constant as if its pack were full; no sample takes less in any plan. Ties go to
    the lower degree. Samples longer than every capacity have kind -1 and infinite seconds. O(n k).

    Args:
        limit: seconds; a sample that takes longer alone gets a degree where it does not, else the fastest one.
    """
    length = np.asarray(lengths, dtype=np.float64)
    kind, fastest = np.full((2, len(length)), -1, dtype=np.int64)
    least, alone, of_fastest = np.full((3, len(length)), np.inf)
    for k, degree in enumerate(costs.gpus.tolist()):
        own = (costs.quadratic[k] * length + costs.linear[k]) * length
        taken = degree * (own + costs.constant[k] / costs.capacity[k] * length)
        seconds = np.where(length <= costs.capacity[k], own + costs.constant[k], np.inf)
        faster = seconds < alone
        fastest[faster], alone[faster], of_fastest[faster] = k, seconds[faster], taken[faster]
        cheaper = (taken < least) & (seconds <= min(limit, np.finfo(np.float64).max))
        kind[cheaper], least[cheaper] = k, taken[cheaper]
    over = kind < 0
    return np.where(over, fastest, kind), np.where(over, of_fastest, least)


_LONG = 8
"""Samples over this part of the capacity are packed before the others."""
_OWN = 2
_ONE = cast(int, np.int64(1))


class MixedPacks(NamedTuple):
    """p packs of m samples, for groups of unlike degrees."""

    offsets: Int64Array
    """int64[p+1]"""
    samples: Int32Array
    """int32[m]"""
    kinds: Int64Array
    """int64[p]: index into `GroupCosts.gpus`."""


class MixedIterations(NamedTuple):
    """i iterations of p packs of m samples: what all planners of this package return.

    Packs are numbered by iteration, within one by falling degree: so where degrees are powers of two, giving GPUs to
    them in turn, from GPU 0, keeps every group aligned. Degrees of an iteration add up to the GPUs, or to less where
    the rest stays idle; no pack is empty.
    """

    offsets: Int64Array
    """int64[p+1]: pack k holds `samples[offsets[k]:offsets[k+1]]`."""
    samples: Int32Array
    """int32[m]"""
    kinds: Int64Array
    """int64[p]: index of the pack's degree in `GroupCosts.gpus`."""
    iterations: Int64Array
    """int64[i+1]: iteration j runs packs `iterations[j] .. iterations[j+1] - 1`."""


def pack_by_degree(lengths: Int32Array, costs: GroupCosts, seed: int, limit: float = np.inf) -> MixedPacks:
    """Pack samples (int32[n], each at most the greatest capacity) for the degrees of their least GPU-seconds.

    Args:
        limit: seconds; a sample that takes longer alone runs at a degree where it does not, or where it is fastest.
    """
    count = count_lengths(lengths)
    length = np.flatnonzero(count)
    kinds, least = cheapest_degrees(length, costs, limit)
    is_left = np.ones(len(lengths), dtype=np.bool_)
    parts: list[MixedPacks] = []
    used = np.unique(kinds)[::-1].tolist()
    for kind in used[:-1]:
        # Of each length: 0 goes elsewhere, 1 may fill, 2 must be packed here.
        here = costs.gpus[kind] * (costs.quadratic[kind] * length + costs.linear[kind]) * length
        role = np.zeros(len(count), dtype=np.int8)
        role[length] = np.where(kinds == kind, _OWN, (kinds < kind) & (here < least))
        parts.append(_pack_longest_first(lengths, is_left, count, role, costs, kind, limit))
    for kind in used[-1:]:
        parts.append(_pack_lowest(lengths, is_left, int(costs.capacity[kind]), kind, seed))
    return join_packs(parts)


def join_packs(parts: Sequence[MixedPacks | MixedIterations]) -> MixedPacks:
    """Join the packs of the parts, one after the other. O(m)."""
    none = np.empty(0, dtype=np.int64)
    sizes = np.concatenate([none, *(np.diff(part.offsets) for part in parts)])
    return MixedPacks(
        offsets=np.concatenate([[0], np.cumsum(sizes)]),
        samples=np.concatenate([as_ids(none), *(part.samples for part in parts)]),
        kinds=np.concatenate([none, *(part.kinds for part in parts)]),
    )


def joined(parts: Sequence[MixedIterations]) -> MixedIterations:
    """Join the parts, one after the other. O(m)."""
    packs = np.concatenate([np.empty(0, dtype=np.int64), *(np.diff(part.iterations) for part in parts)])
    return MixedIterations(*join_packs(parts), np.concatenate([[0], np.cumsum(packs)]))


def one_iteration(members: Int32Array, solved: MicroBatch) -> MixedIterations:
    """Make an iteration of a solved micro-batch of the samples `members` (int32[n])."""
    sizes = np.bincount(solved.group_of, minlength=len(solved.kinds))
    return MixedIterations(
        offsets=np.concatenate([[0], np.cumsum(sizes)]),
        samples=members[np.argsort(solved.group_of, kind="stable")],
        kinds=solved.kinds,
        iterations=np.array([0, len(solved.kinds)]),
    )


def _pack_lowest(lengths: Int32Array, is_left: BoolArray, capacity: int, kind: int, seed: int) -> MixedPacks:
    own = ids_of(is_left)
    order = shuffled(len(own), rng_state(int(rng_state(seed, Stream.PACKING, kind)[0])))
    length = lengths[own[order]]
    is_long = length > capacity // _LONG
    falling = np.flatnonzero(is_long)[np.argsort(-length[is_long], kind="stable")]
    order = order[np.concatenate([falling, np.flatnonzero(~is_long)])]
    to_pack, num_packs = best_fit_each(lengths, own[order], capacity)
    offsets, members = group_moves(to_pack, ONE_EACH, own[order], num_packs)
    return MixedPacks(offsets, members, np.full(num_packs, kind))


def _pack_longest_first(
    lengths: Int32Array,
    is_left: BoolArray,
    count: Int64Array,
    role: Int8Array,
    costs: GroupCosts,
    kind: int,
    limit: float,
) -> MixedPacks:
    """Pack all samples left of the lengths whose `role` (int8[longest + 1]) is `_OWN`, and fill with those of 1.

    Clears `is_left` of the samples that it packs, and takes them from `count`.
    """
    usable = np.where(role > 0, count, 0)
    own, fitting = full_index((usable > 0) & (role == _OWN)), full_index(usable > 0)
    rates, capacity = costs.rates[:, kind].copy(), int(costs.capacity[kind])
    chosen, pack_of, num_packs = _choose(usable, own, fitting, rates, capacity, limit)
    found = pick_samples(chosen, lengths, is_left, len(count) - 1)
    is_left[found] = False
    count -= np.bincount(chosen, minlength=len(count))
    offsets, members = group_by_pack(pack_of, as_ids(np.arange(len(chosen))), num_packs)
    return MixedPacks(offsets, found[members], np.full(num_packs, kind))


@njit(cache=True)
def _choose(
    left: Int64Array, own: LengthIndex, fitting: LengthIndex, rates: Float64Array, capacity: int, limit: float
) -> tuple[Int32Array, Int32Array, int]:
    """Choose lengths for packs; return these (int32[n]), the pack of each (int32[n]), and the number of packs.

    Args:
        left: int64[longest + 1], samples of each length; counted down.
        own: the lengths that must be packed here.
        fitting: all lengths that may be.
        rates: float64[3] of the degree.
        limit: seconds; only a pack's first sample may exceed it.
    """
    chosen, pack_of = np.empty((2, left.sum()), dtype=np.int32)  # Untouched memory costs nothing.
    num_chosen, pack = 0, 0
    while True:
        length = index_floor(own, capacity)
        if length < 0:
            return chosen[:num_chosen].copy(), pack_of[:num_chosen].copy(), pack
        room = capacity
        seconds = rates[2]
        while length > 0:
            chosen[num_chosen] = length
            pack_of[num_chosen] = pack
            num_chosen += 1
            left[length] -= 1
            if left[length] == 0:
                index_remove(fitting, length)
                index_remove(own, length)
            room -= length
            seconds += (rates[0] * length + rates[1]) * length
            most = room
            if limit < np.inf:
                most = min(most, _longest_within(rates, limit - seconds))
            length = index_floor(fitting, most) if most > 0 else -_ONE
        pack += 1


@njit(cache=True, no_cpython_wrapper=True)
def _longest_within(rates: Float64Array, seconds: float) -> int:
    """Return the length of the longest sample that adds at most so many seconds."""
    if seconds <= 0:
        return 0
    if rates[0] == 0:
        return int(min(seconds / rates[1], 2.0**31))
    half = rates[1] / (2 * rates[0])
    return int(min(np.sqrt(half * half + seconds / rates[0]) - half, 2.0**31))
