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
from typing import cast

import numpy as np
from numba import njit
from numpy.typing import NDArray

from packer_cli.plan.core.types import Int64Array
from packer_cli.plan.kernels.length_index import full_index, index_ceiling, index_floor, index_remove


def pick_samples(
    chosen: NDArray[np.int32], lengths: NDArray[np.int32], is_left: NDArray[np.bool_], longest: int
) -> NDArray[np.int32]:
    """A candidate (int32[a]) for each chosen length: the k-th choice of a length gets its k-th candidate.

    O(n + a + longest); it stops when all are found.
    """
    begin = np.concatenate([[0], np.cumsum(np.bincount(chosen, minlength=longest + 1))])
    found, samples = (np.empty(len(chosen), dtype=np.int32) for _ in range(2))
    _find(lengths, is_left, begin, begin[:-1].copy(), found)
    _in_order(chosen, begin[:-1].copy(), found, samples)
    return samples


@njit(cache=True)
def _find(
    lengths: NDArray[np.int32],
    is_left: NDArray[np.bool_],
    begin: NDArray[np.int64],
    place: NDArray[np.int64],
    found: NDArray[np.int32],
) -> None:
    """Write the first candidates of each length to `found`, by length; `place` is the next index of each length."""
    num_found = 0
    for i in range(len(lengths)):
        if num_found == len(found):
            break
        length = lengths[i]
        if is_left[i] and place[length] < begin[length + 1]:
            found[place[length]] = i
            place[length] += 1
            num_found += 1


@njit(cache=True)
def _in_order(
    chosen: NDArray[np.int32], place: NDArray[np.int64], found: NDArray[np.int32], samples: NDArray[np.int32]
) -> None:
    """Write the next found candidate for each chosen length in turn."""
    for j in range(len(chosen)):
        samples[j] = found[place[chosen[j]]]
        place[chosen[j]] += 1


def longest_fill(room: NDArray[np.int64], count: NDArray[np.int64]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Choose lengths for each pack in turn, always the longest that still fits.

    Price: one look-up a placed sample, O(candidates + placed + capacity).

    Args:
        room: int64[p], free tokens of each pack.
        count: int64[longest + 1], number of candidates of each length.

    Returns:
        `(pack int32[a], chosen int32[a])`: a sample of length `chosen[j]` goes to pack `pack[j]`, see `pick_samples`.
    """
    words, starts = full_index(count > 0)
    offsets = np.zeros(len(room) + 1, dtype=np.int64)
    chosen = np.empty(count.sum(), dtype=np.int32)  # untouched memory costs nothing
    _fill_longest_first(room, count.copy(), words, starts, offsets, chosen)
    return np.repeat(np.arange(len(room), dtype=np.int32), np.diff(offsets)), chosen[: offsets[-1]].copy()


@njit(cache=True)
def _fill_longest_first(
    room: NDArray[np.int64],
    left: NDArray[np.int64],
    words: NDArray[np.uint64],
    starts: NDArray[np.int64],
    offsets: NDArray[np.int64],
    chosen: NDArray[np.int32],
) -> None:
    num_chosen = 0
    for k in range(len(room)):
        free = room[k]
        while free > 0:
            length = index_floor(words, starts, free)
            if length < 0:
                break
            chosen[num_chosen] = length
            num_chosen += 1
            left[length] -= 1
            if left[length] == 0:
                index_remove(words, starts, length)
            free -= length
        offsets[k + 1] = num_chosen


_ONE = cast(int, np.int64(1))
"""An int64, since numba compiles a function again for each Python literal passed to it."""


def median_length(count: Int64Array) -> int:
    """The median of a histogram, int64[longest + 1], rounded down."""
    up_to = np.cumsum(count)
    lower, upper = np.searchsorted(up_to, [(up_to[-1] - 1) // 2, up_to[-1] // 2], side="right")
    return int(lower + upper) // 2


@njit(cache=True, no_cpython_wrapper=True)
def _next_length(free: int, lack: float) -> int:
    """The longest of the samples that fill `free` tokens and do `lack` work, if the others are equal.

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
    room: NDArray[np.int64],
    work: NDArray[np.int64],
    order: NDArray[np.int32],
    num_ranks: int,
    count: NDArray[np.int64],
    typical: int,
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
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
    words, starts = full_index(count > 0)
    chosen = np.empty(count.sum(), dtype=np.int32)  # untouched memory costs nothing
    pack_of = np.empty(len(chosen), dtype=np.int32)
    # The target of an iteration: the greatest work of any pack if filled with samples of typical length.
    goal = (work + room.astype(np.float64) * typical)[order]
    target = np.maximum.reduceat(goal, np.arange(0, len(order), num_ranks))
    num_chosen = _fill_evenly(room, work, order, num_ranks, target, count.copy(), words, starts, pack_of, chosen)
    return pack_of[:num_chosen].copy(), chosen[:num_chosen].copy()


@njit(cache=True)
def _fill_evenly(
    room: NDArray[np.int64],
    work: NDArray[np.int64],
    order: NDArray[np.int32],
    num_ranks: int,
    target: NDArray[np.float64],
    left: NDArray[np.int64],
    words: NDArray[np.uint64],
    starts: NDArray[np.int64],
    pack_of: NDArray[np.int32],
    chosen: NDArray[np.int32],
) -> int:
    num_chosen = 0
    for i in range(len(order)):
        k = order[i]
        free = room[k]
        done = float(work[k])
        while free > 0:
            length = index_floor(words, starts, _next_length(free, target[i // num_ranks] - done))
            if length < 0:
                length = index_ceiling(words, starts, _ONE)
                if length < 0 or length > free:
                    break
            chosen[num_chosen] = length
            pack_of[num_chosen] = k
            num_chosen += 1
            left[length] -= 1
            if left[length] == 0:
                index_remove(words, starts, length)
            free -= length
            done += float(length) * length
    return num_chosen


_BLOCK = 64
_TAKEN = np.iinfo(np.int64).max


def greedy_fill(
    room: NDArray[np.int64],
    lengths: NDArray[np.int32],
    is_left: NDArray[np.bool_],
    capacities: Sequence[int],
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
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
    packs, samples = [], []
    for shortest, longest in reversed(list(zip((0, *capacities), capacities, strict=False))):
        most = _index(lengths, is_left, shortest, longest, least)
        pack_of, chosen = (np.empty(most, dtype=np.int32) for _ in range(2))  # untouched memory costs nothing
        num_chosen = _fill_in_order(room, lengths, is_left, shortest, longest, least, pack_of, chosen)
        packs.append(pack_of[:num_chosen].copy())
        samples.append(chosen[:num_chosen].copy())
    return np.concatenate(packs), np.concatenate(samples)


@njit(cache=True)
def _index(
    lengths: NDArray[np.int32],
    is_left: NDArray[np.bool_],
    shortest: int,
    longest: int,
    least: NDArray[np.int64],
) -> int:
    """Write the tree to `least` (int64[2 * leaves], the root at 1); the number of samples in it."""
    num_leaves = len(least) // 2
    num_samples = 0
    for block in range(num_leaves):
        least[num_leaves + block] = _TAKEN
        for i in range(block * _BLOCK, min((block + 1) * _BLOCK, len(lengths))):
            if is_left[i] and shortest < lengths[i] <= longest:
                num_samples += 1
                least[num_leaves + block] = min(least[num_leaves + block], lengths[i])
    for node in range(num_leaves - 1, 0, -1):
        least[node] = min(least[2 * node], least[2 * node + 1])
    return num_samples


@njit(cache=True)
def _fill_in_order(
    room: NDArray[np.int64],
    lengths: NDArray[np.int32],
    is_left: NDArray[np.bool_],
    shortest: int,
    longest: int,
    least: NDArray[np.int64],
    pack_of: NDArray[np.int32],
    chosen: NDArray[np.int32],
) -> int:
    num_chosen = 0
    for k in range(len(room)):
        i = 0
        while True:
            i = _next_that_fits(lengths, is_left, shortest, min(longest, room[k]), least, i)
            if i < 0:
                break
            pack_of[num_chosen] = k
            chosen[num_chosen] = i
            num_chosen += 1
            room[k] -= lengths[i]
            is_left[i] = False
            _update(lengths, is_left, shortest, longest, least, i // _BLOCK)
            i += 1
    return num_chosen


@njit(cache=True, no_cpython_wrapper=True)
def _next_that_fits(
    lengths: NDArray[np.int32],
    is_left: NDArray[np.bool_],
    shortest: int,
    longest: int,
    least: NDArray[np.int64],
    first: int,
) -> int:
    """The first sample from `first` on with `shortest < length <= longest`; -1 for none."""
    block = first // _BLOCK
    while block >= 0:
        for i in range(first, min((block + 1) * _BLOCK, len(lengths))):
            if is_left[i] and shortest < lengths[i] <= longest:
                return i
        block = _next_block(least, block, longest)
        first = block * _BLOCK
    return -1


@njit(cache=True, no_cpython_wrapper=True)
def _next_block(least: NDArray[np.int64], block: int, longest: int) -> int:
    """The first block after this one that holds a sample of at most `longest`; -1 for none."""
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


@njit(cache=True, no_cpython_wrapper=True)
def _update(
    lengths: NDArray[np.int32],
    is_left: NDArray[np.bool_],
    shortest: int,
    longest: int,
    least: NDArray[np.int64],
    block: int,
) -> None:
    """Bring the tree up to date after a sample of the block was taken."""
    node = len(least) // 2 + block
    smallest = _TAKEN
    for i in range(block * _BLOCK, min((block + 1) * _BLOCK, len(lengths))):
        if is_left[i] and shortest < lengths[i] <= longest:
            smallest = min(smallest, lengths[i])
    while node >= 1 and least[node] != smallest:
        least[node] = smallest
        smallest = min(smallest, least[node ^ 1])
        node >>= 1
