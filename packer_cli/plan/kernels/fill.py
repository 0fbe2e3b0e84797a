"""Which shorter samples fill the free space of long packs: by lengths, or in the order of the data.

By lengths, rules choose lengths, and `pick_samples` finds samples of these. `longest` takes the longest that fit
first, a variant of HBP's algorithm 6; the lengths of the remaining samples are counted and indexed. `balanced` makes
the packs of an iteration do equal attention work: a pack with free space r that lacks work w takes samples of about
w / r tokens, since a sample of s tokens does work s per token. It saves the lengths that HBP would use up first, and
pads as little.

`greedy` is HBP's GreedyFill (algorithm 6). As published it scans all remaining samples for each pack, which is
quadratic. Here a tree over blocks of samples holds the least length that is left in each, and answers "the next sample
from here on that fits".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, cast

import numpy as np

from packer_cli.jit import njit
from packer_cli.plan.core.csr import argsort_descending
from packer_cli.plan.core.types import BoolArray, Float64Array, Int32Array, Int64Array
from packer_cli.plan.kernels.length_index import LengthIndex, full_index, index_ceiling, index_floor, index_remove


def pick_samples(chosen: Int32Array, lengths: Int32Array, is_left: BoolArray, longest: int) -> Int32Array:
    """Pick a candidate (int32[a]) for each chosen length: the k-th choice of a length gets its k-th candidate.

    O(n + a + longest); it stops when all are found.
    """
    count = np.bincount(chosen, minlength=longest + 1)
    found, samples = (np.empty(len(chosen), dtype=np.int32) for _ in range(2))
    _find(lengths, is_left, count, len(chosen) - np.cumsum(count), found)
    samples[argsort_descending(chosen)] = found
    return samples


@njit(cache=True)
def _find(lengths: Int32Array, is_left: BoolArray, count: Int64Array, place: Int64Array, found: Int32Array) -> None:
    """Write the first `count` candidates of each length to `found`, from the `place` of the length on."""
    left = len(found)
    for i in range(len(lengths)):
        if left == 0:
            break
        length = lengths[i]
        if is_left[i] and count[length] > 0:
            found[place[length]] = i
            place[length] += 1
            count[length] -= 1
            left -= 1


def longest_fill(room: Int64Array, count: Int64Array) -> tuple[Int32Array, Int32Array]:
    """Choose lengths for each pack in turn, always the longest that still fits.

    Price: one look-up a placed sample, O(candidates + placed + capacity).

    Args:
        room: int64[p], free tokens of each pack.
        count: int64[longest + 1], number of candidates of each length.

    Returns:
        `(pack int32[a], chosen int32[a])`: a sample of length `chosen[j]` goes to pack `pack[j]`, see `pick_samples`.
    """
    return _fill_by_length(room, np.full(len(room), np.inf), count)


_ONE = cast(int, np.int64(1))
"""An int64, since numba compiles a function again for each Python literal passed to it."""


def median_length(count: Int64Array) -> int:
    """Return the median of a histogram, int64[longest + 1], rounded down."""
    up_to = np.cumsum(count)
    lower, upper = np.searchsorted(up_to, [(up_to[-1] - 1) // 2, up_to[-1] // 2], side="right")
    return int(lower + upper) // 2


@njit(cache=True, no_cpython_wrapper=True)
def _next_length(free: int, lack: float) -> int:
    """Return the longest of the samples that fill `free` tokens and do `lack` work, if the others are equal.

    k equal samples do free^2 / k work, so k = ceil(free^2 / lack) of them do at most `lack`; one longer and k - 1
    equal ones do it exactly.
    """
    square = float(free) * free
    if lack >= square:
        return free
    if lack <= free:
        return _ONE
    k = np.ceil(square / lack)
    over = k * lack - square
    length = int((free + (np.sqrt((k - 1) * over) if over > 0 else 0.0)) / k)
    return length if length > 1 else _ONE


def balanced_fill(
    room: Int64Array, work: Int64Array, order: Int32Array, num_ranks: int, count: Int64Array, typical: int
) -> tuple[Int32Array, Int32Array]:
    """Choose lengths for each pack so that the packs of an iteration do equal work.

    Args:
        room: int64[p], free tokens of each pack.
        work: int64[p], attention work of each pack before it is filled.
        order: int32[p], the packs by decreasing work; `num_ranks` consecutive ones form an iteration.
        count: int64[longest + 1], number of candidates of each length.
        typical: a plentiful length; the heaviest packs are filled with samples of about this length.

    Returns:
        `(pack int32[a], chosen int32[a])`: a sample of length `chosen[j]` goes to pack `pack[j]`, see `pick_samples`.
    """
    # The target of an iteration: the greatest work of any pack if filled with samples of typical length.
    goal = (work + room.astype(np.float64) * typical)[order]
    target = np.maximum.reduceat(goal, np.arange(0, len(order), num_ranks))[np.arange(len(order)) // num_ranks]
    place, chosen = _fill_by_length(room[order], target - work[order], count)
    return order[place], chosen


def _fill_by_length(room: Int64Array, lack: Float64Array, count: Int64Array) -> tuple[Int32Array, Int32Array]:
    """Choose lengths for each pack in turn; `lack` (float64[p]) is the work that it should do besides its own."""
    offsets = np.zeros(len(room) + 1, dtype=np.int64)
    chosen = np.empty(count.sum(), dtype=np.int32)  # untouched memory costs nothing
    _fill(room, lack, count.copy(), full_index(count > 0), offsets, chosen)
    return np.repeat(np.arange(len(room), dtype=np.int32), np.diff(offsets)), chosen[: offsets[-1]].copy()


@njit(cache=True)
def _fill(
    room: Int64Array, lack: Float64Array, left: Int64Array, index: LengthIndex, offsets: Int64Array, chosen: Int32Array
) -> None:
    """Write to `chosen`, and where the lengths of each pack end to `offsets`; `left` of each length is indexed."""
    num_chosen = 0
    for k in range(len(room)):
        free, lacking = room[k], lack[k]
        while free > 0:
            length = index_floor(index, _next_length(free, lacking))
            if length < 0:
                length = index_ceiling(index, _ONE)
                if length < 0 or length > free:
                    break
            chosen[num_chosen] = length
            num_chosen += 1
            left[length] -= 1
            if left[length] == 0:
                index_remove(index, length)
            free -= length
            lacking -= float(length) * length
        offsets[k + 1] = num_chosen


_BLOCK = 64
_TAKEN = np.iinfo(np.int64).max


class Candidates(NamedTuple):
    """The samples of one group that may be taken, and a tree over blocks of them."""

    lengths: Int32Array
    """int32[n], of every sample, in the order of the data."""
    is_left: BoolArray
    """bool[n]"""
    shortest: int
    """Length that the candidates of the group exceed."""
    longest: int
    least: Int64Array
    """int64[2 * leaves]: the least length that is left under each node, the root at 1."""


def greedy_fill(
    room: Int64Array, lengths: Int32Array, is_left: BoolArray, capacities: Sequence[int]
) -> tuple[Int32Array, Int32Array]:
    """Give each pack in turn every sample that still fits: those of the next shorter group, then of the one below.

    Groups share no samples, so filling all packs from one group before the next gives the result of the paper's loop,
    which takes all groups for one pack before the next pack.

    Price: O(log n) for each placed sample and each pack, n samples; memory: n / 4 bytes.

    Args:
        room: int64[p], free tokens of each pack, in the order in which packs are filled.
        lengths: int32[n], of every sample, in the order of the data.
        is_left: bool[n], samples that may be taken; cleared for those that are.
        capacities: of the shorter groups, increasing.

    Returns:
        `(pack int32[a], sample int32[a])`: `sample[j]` goes to pack `pack[j]`; those of a pack in the order of choice.
    """
    room = room.copy()
    num_leaves = 1 << max(0, -(-len(lengths) // _BLOCK) - 1).bit_length()
    least = np.empty(2 * num_leaves, dtype=np.int64)
    pack_of, chosen = (np.empty(len(lengths), dtype=np.int32) for _ in range(2))  # untouched memory costs nothing
    num = 0
    for shortest, longest in reversed(list(zip((0, *capacities), capacities, strict=False))):
        num += _fill_in_order(
            room, Candidates(lengths, is_left, shortest, longest, least), pack_of[num:], chosen[num:]
        )
    return pack_of[:num].copy(), chosen[:num].copy()


@njit(cache=True)
def _fill_in_order(room: Int64Array, own: Candidates, pack_of: Int32Array, chosen: Int32Array) -> int:
    """Write to `pack_of` and `chosen`; returns the number of samples that were taken."""
    num_leaves = len(own.least) // 2
    for block in range(num_leaves):
        own.least[num_leaves + block] = _least_of(own, block)
    for node in range(num_leaves - 1, 0, -1):
        own.least[node] = min(own.least[2 * node], own.least[2 * node + 1])
    num_chosen = 0
    for k in range(len(room)):
        i = 0
        while True:
            i = _next_that_fits(own, min(own.longest, room[k]), i)
            if i < 0:
                break
            pack_of[num_chosen] = k
            chosen[num_chosen] = i
            num_chosen += 1
            room[k] -= own.lengths[i]
            own.is_left[i] = False
            # Up to the first node whose least length does not change.
            node, least = num_leaves + i // _BLOCK, _least_of(own, i // _BLOCK)
            while node >= 1 and own.least[node] != least:
                own.least[node] = least
                least = min(least, own.least[node ^ 1])
                node >>= 1
            i += 1
    return num_chosen


@njit(cache=True, no_cpython_wrapper=True)
def _least_of(own: Candidates, block: int) -> int:
    """Return the least length that is left in a block."""
    least = _TAKEN
    for i in range(block * _BLOCK, min((block + 1) * _BLOCK, len(own.lengths))):
        if own.is_left[i] and own.shortest < own.lengths[i] <= own.longest:
            least = min(least, own.lengths[i])
    return least


@njit(cache=True, no_cpython_wrapper=True)
def _next_that_fits(own: Candidates, longest: int, first: int) -> int:
    """Find the first sample from `first` on of at most `longest` tokens; -1 for none."""
    block = first // _BLOCK
    while block >= 0:
        for i in range(first, min((block + 1) * _BLOCK, len(own.lengths))):
            if own.is_left[i] and own.shortest < own.lengths[i] <= longest:
                return i
        block = _next_block(own.least, block, longest)
        first = block * _BLOCK
    return -1


@njit(cache=True, no_cpython_wrapper=True)
def _next_block(least: Int64Array, block: int, longest: int) -> int:
    """Find the first block after this one that holds a sample of at most `longest`; -1 for none."""
    num_leaves = len(least) // 2
    node = num_leaves + block
    while node & 1 or least[node + 1] > longest:  # A right child, or its right neighbor holds nothing: go up.
        node >>= 1
        if node <= 1:
            return -1
    node += 1
    while node < num_leaves:
        node *= 2
        if least[node] > longest:
            node += 1
    return node - num_leaves
