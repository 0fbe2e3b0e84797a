"""Best-fit, the kernel of `bfd` and `bfs`, also for what `ilp` leaves: it places runs of equal lengths, not samples.

After the fullest pack with room for a sample has taken it, it is still the fullest with room for another of the same
length; so a pack takes as many samples of a run as fit, at once. Price: O(1) for each pack that a run touches, which
are far fewer than samples if these are short against the capacity, and a look-up in a bitmap of remaining capacities
for each room that a run meets. Memory: 8 bytes a token of the longest sample, however great the capacity.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from packer_cli.plan.core.csr import count_lengths
from packer_cli.plan.kernels.length_index import LengthIndex, empty_index, index_add, index_ceiling, index_remove

_NO_ROOMS = np.empty(0, dtype=np.int64)
_BLOCK = 1 << 20


def runs_by_decreasing_length(lengths: NDArray[np.int32]) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """Make the histogram: distinct lengths int32[r], falling, and their samples' numbers int64[r]. O(n + longest)."""
    count = count_lengths(lengths)
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
    packs = _stacks(int(run_lengths.max(initial=0)), most)
    last = np.array([0, capacity])
    num_moves = _best_fit(run_lengths, run_counts, capacity, _NO_ROOMS, last, *packs, to_pack, to_number)
    return to_pack[:num_moves], to_number[:num_moves], _num_packs(last, capacity)


def best_fit_each(
    lengths: NDArray[np.int32], order: NDArray[np.int32], capacity: int, rooms: NDArray[np.int64] = _NO_ROOMS
) -> tuple[NDArray[np.int32], int]:
    """Place sample by sample as `best_fit`; return `(pack int32[n] of each sample of order, packs)`.

    Works block by block: besides the result, it needs 4 bytes a pack.

    Args:
        lengths: int32, of the samples.
        order: int32[n], the samples in the order of placing.
        rooms: int64[k], free tokens of packs 0 .. k-1 at the start; new packs are numbered from k.
    """
    to_pack = np.empty(len(order), dtype=np.int32)
    greatest = max(min(capacity, int(lengths.max(initial=0))), int(rooms.max(initial=0)))
    packs = _stacks(greatest, len(rooms) + len(order))
    last = np.array([0, capacity])
    one_each = np.ones(min(_BLOCK, len(order)), dtype=np.int64)
    to_number = np.empty(len(one_each), dtype=np.int32)
    for first in range(0, max(1, len(order)), _BLOCK):
        block = lengths[order[first : first + _BLOCK]]
        places = to_pack[first : first + _BLOCK], to_number
        _best_fit(block, one_each[: len(block)], capacity, rooms, last, *packs, *places)
        rooms = _NO_ROOMS
    return to_pack, _num_packs(last, capacity)


def _num_packs(last: NDArray[np.int64], capacity: int) -> int:
    """Count all packs: those before the last one, and the last one if it holds a sample."""
    return int(last[0]) + int(last[1] < capacity)


def _stacks(greatest: int, most: int) -> tuple[LengthIndex, NDArray[np.int64], NDArray[np.int32]]:
    """Return the index of rooms 0 .. greatest, and the stacks of at most `most` packs: all empty.

    Untouched memory costs nothing.
    """
    return empty_index(greatest + 1), np.full(greatest + 1, -1, dtype=np.int64), np.empty(most, dtype=np.int32)


@njit(cache=True)
def _best_fit(
    run_lengths: NDArray[np.int32],
    run_counts: NDArray[np.int64],
    capacity: int,
    rooms: NDArray[np.int64],
    last: NDArray[np.int64],
    index: LengthIndex,
    top: NDArray[np.int64],
    below: NDArray[np.int32],
    to_pack: NDArray[np.int32],
    to_number: NDArray[np.int32],
) -> int:
    """Write to `to_pack` and `to_number`; returns the entries written.

    Packs with the same room form a stack: its `top` (int64[greatest + 1], initially -1) and the pack `below` each.
    `greatest` is at least every length. So a pack with more room takes any sample, and no other is opened before it
    has less: the last pack alone can have more. That one is in no stack; `last` (int64[2], updated) is its number,
    which counts the packs before it, and its room. The packs of these `rooms` come before it.
    """
    greatest = len(top) - 1
    num_packs, last_room = last
    num_moves = 0
    for room in rooms:
        if room > 0:
            if top[room] < 0:
                index_add(index, room)
            below[num_packs] = top[room]
            top[room] = num_packs
        num_packs += 1
    for run in range(len(run_lengths)):
        length = np.int64(run_lengths[run])
        left = run_counts[run]
        while left > 0:
            room = index_ceiling(index, length)
            is_new = room < 0
            if is_new:
                room = last_room
                last_room = capacity
            fits = room // length
            pack = num_packs if is_new else top[room]
            # All packs of this room in turn: afterwards they have no room for the run's length, or the run is placed.
            while left > 0 and pack >= 0:
                if is_new:
                    num_packs += 1
                    following = num_packs if room == capacity else np.int64(-1)
                else:
                    following = np.int64(below[pack])
                number = min(left, fits)
                left -= number
                to_pack[num_moves] = pack
                to_number[num_moves] = number
                num_moves += 1
                after = room - number * length
                if after > greatest:
                    num_packs, last_room = pack, after
                elif after > 0:
                    if top[after] < 0:
                        index_add(index, after)
                    below[pack] = top[after]
                    top[after] = pack
                pack = following
            if not is_new:
                top[room] = pack
                if pack < 0:
                    index_remove(index, room)
    last[0], last[1] = num_packs, last_room
    return num_moves
