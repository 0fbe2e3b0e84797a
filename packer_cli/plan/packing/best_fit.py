"""Best-fit, the kernel of `bfd` and `bfs`, also for what `ilp` leaves: it places runs of equal lengths, not samples.

After the fullest pack with room for a sample has taken it, it is still the fullest with room for another of the same
length; so a pack takes as many samples of a run as fit, at once. Price: O(1) for each pack that a run touches, which
are far fewer than samples if these are short against the capacity, and a look-up in a bitmap of remaining capacities
for each room that a run meets.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from packer_cli.plan.length_index import empty_index, index_add, index_ceiling, index_remove
from packer_cli.plan.sorting import count_lengths

_NO_ROOMS = np.empty(0, dtype=np.int64)
_BLOCK = 1 << 20


def runs_by_decreasing_length(lengths: NDArray[np.int32], longest: int) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """The histogram: distinct lengths int32[r], decreasing, and the samples of each, int64[r]. O(n + longest)."""
    count = count_lengths(lengths, longest)
    found = np.flatnonzero(count)[::-1]
    return found.astype(np.int32), count[found]


def best_fit(
    run_lengths: NDArray[np.int32], run_counts: NDArray[np.int64], capacity: int
) -> tuple[NDArray[np.int32], NDArray[np.int32], int]:
    """Put each sample in turn into the fullest pack that has room; of equally full ones, into the last one touched.

    Args:
        run_lengths: int32[r], lengths in the order of placing, each 1 .. capacity.
        run_counts: int64[r], consecutive samples of each length.
        capacity: most tokens of a pack.

    Returns:
        `(pack int32[t], number int32[t], packs)`: in the order of placing, the first `number[0]` samples go to
        `pack[0]`, the next `number[1]` to `pack[1]`, and so on; `packs` counts all packs.
    """
    most = int(run_counts.sum())
    to_pack, to_number = (np.empty(most, dtype=np.int32) for _ in range(2))  # untouched memory costs nothing
    packs = _stacks(capacity, most)
    num_moves, num_packs = _best_fit(run_lengths, run_counts, capacity, _NO_ROOMS, 0, *packs, to_pack, to_number)
    return to_pack[:num_moves], to_number[:num_moves], num_packs


def best_fit_each(
    lengths: NDArray[np.int32], order: NDArray[np.int32], capacity: int, rooms: NDArray[np.int64] = _NO_ROOMS
) -> tuple[NDArray[np.int32], int]:
    """`best_fit`, sample by sample; `(pack int32[n] of each sample of order, packs)`.

    Works block by block: besides the result, it needs 4 bytes a pack.

    Args:
        lengths: int32, of the samples.
        order: int32[n], the samples in the order of placing.
        rooms: int64[k], free tokens of packs 0 .. k-1 at the start; new packs are numbered from k.
    """
    to_pack = np.empty(len(order), dtype=np.int32)
    packs = _stacks(capacity, len(rooms) + len(order))
    one_each = np.ones(min(_BLOCK, len(order)), dtype=np.int64)
    to_number = np.empty(len(one_each), dtype=np.int32)
    num_packs = 0
    for first in range(0, max(1, len(order)), _BLOCK):
        block = lengths[order[first : first + _BLOCK]]
        places = to_pack[first : first + _BLOCK], to_number
        _, num_packs = _best_fit(block, one_each[: len(block)], capacity, rooms, num_packs, *packs, *places)
        rooms = _NO_ROOMS
    return to_pack, num_packs


def _stacks(
    capacity: int, most: int
) -> tuple[NDArray[np.uint64], NDArray[np.int64], NDArray[np.int64], NDArray[np.int32]]:
    """The index of rooms, and the stacks of at most `most` packs: all empty. Untouched memory costs nothing."""
    return *empty_index(capacity + 1), np.full(capacity + 1, -1, dtype=np.int64), np.empty(most, dtype=np.int32)


@njit(cache=True)
def _best_fit(
    run_lengths: NDArray[np.int32],
    run_counts: NDArray[np.int64],
    capacity: int,
    rooms: NDArray[np.int64],
    num_packs: int,
    words: NDArray[np.uint64],
    starts: NDArray[np.int64],
    top: NDArray[np.int64],
    below: NDArray[np.int32],
    to_pack: NDArray[np.int32],
    to_number: NDArray[np.int32],
) -> tuple[int, int]:
    """Write to `to_pack` and `to_number`; returns `(entries written, packs)`.

    Packs with the same room form a stack: its `top` (int64[capacity + 1], initially -1) and the pack `below` each.
    There are `num_packs` packs already; those of these `rooms` follow.
    """
    num_moves = 0
    for room in rooms:
        if room > 0:
            if top[room] < 0:
                index_add(words, starts, room)
            below[num_packs] = top[room]
            top[room] = num_packs
        num_packs += 1
    for run in range(len(run_lengths)):
        length = np.int64(run_lengths[run])
        left = run_counts[run]
        while left > 0:
            room = index_ceiling(words, starts, length)
            is_new = room < 0
            if is_new:
                room = capacity
            fits = room // length
            pack = num_packs if is_new else top[room]
            # All packs of this room in turn: afterwards they have no room for the run's length, or the run is placed.
            while left > 0 and pack >= 0:
                following = pack + 1 if is_new else np.int64(below[pack])
                number = min(left, fits)
                left -= number
                to_pack[num_moves] = pack
                to_number[num_moves] = number
                num_moves += 1
                after = room - number * length
                if after > 0:
                    if top[after] < 0:
                        index_add(words, starts, after)
                    below[pack] = top[after]
                    top[after] = pack
                pack = following
            if is_new:
                num_packs = pack
            else:
                top[room] = pack
                if pack < 0:
                    index_remove(words, starts, room)
    return num_moves, num_packs
