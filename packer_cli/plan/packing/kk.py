"""Karmarkar-Karp: largest differencing into a fixed number of packs, window by window.

Source: Karmarkar and Karp 1982, for many parts as in Michiels, Korst, Aarts and van Leeuwen 2003. Price: mostly O(n *
window); O(n) memory. Use it on small sets, or to make the packs of a window nearly equal. Do not use it for the least
padding: evenly filled packs each leave a gap, and `bfd` is faster and needs fewer packs. Do not use a window of
thousands of packs either.

A window is as many samples, in a shuffled order, as `window` packs can hold. Differencing divides them into as many
parts as the lower bound gives. A part over the capacity keeps its longest samples that fit; the others go, longest
first, to the lightest pack with room. Samples that find none wait for the next window; in the last, they open packs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import njit
from numpy.typing import NDArray

from packer_cli.plan.core.bounds import packs_lower_bound
from packer_cli.plan.core.cost import MOST_WORK
from packer_cli.plan.core.csr import argsort_into, group_by_pack
from packer_cli.plan.core.streams import rng_state, shuffled
from packer_cli.plan.core.types import Int32Array, Int64Array
from packer_cli.plan.packing.base import PackingAlgorithm, PackingOptions, require_objective
from packer_cli.plan.packing.heap import heap_pop, heap_push, heap_replace


@dataclass(frozen=True, kw_only=True)
class KkOptions(PackingOptions):
    """A larger window makes more packs nearly equal, and takes longer."""

    objective: str = "tokens"
    """What to even out: `tokens`, or `work`, by default the sum of squared lengths."""
    window: int = 64
    """Packs to make at a time."""

    def __post_init__(self) -> None:
        require_objective("kk", self.objective)
        if self.window < 1:
            raise ValueError(f"option 'window' of packing 'kk' must be at least 1, got {self.window}")
        if self.window >= 2**31:
            raise ValueError(f"option 'window' of packing 'kk' must be at most {2**31 - 1}, got {self.window}")


def pack(
    lengths: Int32Array, capacity: int, seed: int, options: KkOptions, linear: int = 0
) -> tuple[Int64Array, Int32Array]:
    """See the package for shapes; `linear` (tokens) is the linear term of work, see `plan.core.cost`."""
    cost, window = (0, 1), options.window
    if options.objective == "work":
        # Use fewer packs at a time if sums over a window might not be exact: of 64, from 2^28 tokens on.
        cost, window = (1, linear), min(window, max(1, MOST_WORK // (capacity * (capacity + linear))))
    order = shuffled(len(lengths), rng_state(seed))
    by_place, num_packs = _windows(lengths[order], capacity, window, cost)
    pack_of = np.empty(len(lengths), dtype=np.int32)
    pack_of[order] = by_place
    return group_by_pack(pack_of, order, num_packs)


def _windows(lengths: Int32Array, capacity: int, window: int, cost: tuple[int, int]) -> tuple[Int32Array, int]:
    """`(pack of each sample int32[n], packs)`; a sample of s tokens costs `s (cost[0] s + cost[1])`."""
    num = len(lengths)
    pack_of = np.empty(num, dtype=np.int32)
    num_packs = 0
    up_to = np.cumsum(lengths, dtype=np.int64)
    here = np.empty(0, dtype=np.int64)  # the samples of the window: those left over, then new ones
    stop = 0
    while stop < num or len(here):
        room = window * capacity - int(lengths[here].sum(dtype=np.int64))
        first, stop = stop, int(np.searchsorted(up_to, room + (up_to[stop - 1] if stop else 0), side="right"))
        here = np.concatenate([here, np.arange(first, stop)])
        part = lengths[here]
        least = packs_lower_bound(part, capacity)
        part_of = _difference(part, least, *cost)
        used = _repair(part, part_of, least, capacity, *cost, stop == num)
        is_packed = part_of >= 0
        pack_of[here[is_packed]] = num_packs + part_of[is_packed]
        here = here[~is_packed]
        num_packs += used
    return pack_of, num_packs


@njit(cache=True)
def _difference(lengths: NDArray[np.int32], num_parts: int, quadratic: int, linear: int) -> NDArray[np.int64]:
    """Part (int64[n]) of each sample; the parts have nearly equal sums of the objective.

    A partition of some samples is a list of parts by decreasing sum; parts not listed are empty. Until one is left,
    the two partitions whose sums differ most are merged: the greatest part of one with the least of the other.
    """
    num = len(lengths)
    # A partition's id is one of its samples, and so is a part's; n samples are never in more than n parts.
    part_sum = np.empty(num, dtype=np.int64)
    next_sample = np.full(num, -1, dtype=np.int64)
    last_sample = np.arange(num)
    next_part = np.full(num, -1, dtype=np.int64)
    first_part = np.arange(num)
    keys = np.empty(num, dtype=np.int64)
    ids = np.empty(num, dtype=np.int64)
    for i in range(num):
        length = np.int64(lengths[i])
        part_sum[i] = length * (quadratic * length + linear)
        heap_push(keys, ids, i, -part_sum[i] if num_parts > 1 else 0, i)
    one = np.empty(num_parts, dtype=np.int64)
    other = np.empty(num_parts, dtype=np.int64)
    merged = np.empty(num_parts, dtype=np.int64)
    for size in range(num, 1, -1):
        a = ids[0]
        heap_pop(keys, ids, size)
        b = ids[0]
        len_a = _list_parts(first_part[a], next_part, one)
        len_b = _list_parts(first_part[b], next_part, other)
        num_merged = min(num_parts, len_a + len_b)
        # The empty parts of both cancel out where there are enough of them.
        lead = num_merged - len_b
        for i in range(num_merged):
            if i >= len_a:
                part = other[num_merged - 1 - i]
            else:
                part = one[i]
                if i >= lead:
                    joined = other[num_merged - 1 - i]
                    part_sum[part] += part_sum[joined]
                    next_sample[last_sample[part]] = joined
                    last_sample[part] = last_sample[joined]
            # Insertion sort: usually one list is already in order, and the other is short.
            at = i
            while at > 0 and part_sum[merged[at - 1]] < part_sum[part]:
                merged[at] = merged[at - 1]
                at -= 1
            merged[at] = part
        first_part[a] = merged[0]
        for i in range(num_merged - 1):
            next_part[merged[i]] = merged[i + 1]
        next_part[merged[num_merged - 1]] = -1
        spread = part_sum[merged[0]]
        if num_merged == num_parts:
            spread -= part_sum[merged[num_merged - 1]]
        heap_replace(keys, ids, size - 1, -spread, a)
    part_of = np.empty(num, dtype=np.int64)
    part = first_part[ids[0]]
    number = 0
    while part >= 0:
        sample = part
        while sample >= 0:
            part_of[sample] = number
            sample = next_sample[sample]
        number += 1
        part = next_part[part]
    return part_of


@njit(cache=True)
def _list_parts(part: int, next_part: NDArray[np.int64], into: NDArray[np.int64]) -> int:
    num = 0
    while part >= 0:
        into[num] = part
        num += 1
        part = next_part[part]
    return num


@njit(cache=True)
def _repair(
    lengths: NDArray[np.int32],
    part_of: NDArray[np.int64],
    num_parts: int,
    capacity: int,
    quadratic: int,
    linear: int,
    is_last: bool,
) -> int:
    """Move, in `part_of`, samples that exceed the capacity; returns the number of packs. O(moved * packs).

    A sample that finds no room gets -1, or in the last window a new pack.
    """
    total = np.zeros(num_parts, dtype=np.int64)
    for i in range(len(lengths)):
        total[part_of[i]] += lengths[i]
    if total.max() <= capacity:
        return num_parts
    tokens = np.zeros(len(lengths), dtype=np.int64)
    cost = np.zeros(len(lengths), dtype=np.int64)
    moved = np.empty(len(lengths), dtype=np.int64)
    num_moved = 0
    by_length = np.empty(len(lengths), dtype=np.int32)
    argsort_into(lengths, np.zeros(lengths.max() + 2, dtype=np.int64), by_length)
    for sample in by_length:
        length = np.int64(lengths[sample])
        part = part_of[sample]
        if tokens[part] + length <= capacity:
            tokens[part] += length
            cost[part] += length * (quadratic * length + linear)
        else:
            moved[num_moved] = sample
            num_moved += 1
    for sample in moved[:num_moved]:
        length = np.int64(lengths[sample])
        best = num_parts
        for part in range(num_parts):
            if tokens[part] + length <= capacity and (best == num_parts or cost[part] < cost[best]):
                best = part
        if best == num_parts:
            if not is_last:
                part_of[sample] = -1
                continue
            num_parts += 1
        part_of[sample] = best
        tokens[best] += length
        cost[best] += length * (quadratic * length + linear)
    return num_parts


ALGORITHM = PackingAlgorithm(
    name="kk",
    summary="Karmarkar-Karp: packs of even tokens, for small sets",
    pack=pack,
    options=KkOptions,
    uses_work=True,
    bytes_a_sample=40,
)
