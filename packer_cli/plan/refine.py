"""Refine: exchange samples between the packs of one iteration until their attention work is even.

Sorting (HBP, algorithm 7) puts packs of nearly equal work into an iteration; what it leaves is lowered here. The
heaviest pack gives work to a lighter one by exchanges that keep both within capacity: a sample for a shorter one, a
sample for several short ones of about the same total (same tokens, less work: x^2 > sum y_i^2), or two for two. The
longest sample of an iteration bounds what can be reached: no pack that holds it does less than its square.

Ours; the neighbourhood is that of pairwise-interchange heuristics for number partitioning. Price: an exchange costs
O(samples of two packs), and an iteration takes a few exchanges a pack. Packs within `tolerance` are left alone.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

_MOST_PARTNERS = 4
"""Lighter packs that are tried before the heaviest one is given up."""
_STARTS = 8
"""Places in the lighter pack from which several short samples are gathered."""
_PAIRS = 24
"""Samples of each pack that are tried in pairs."""

# Fields of a move: up to two samples of the heavy pack for up to two of the light one, or for `COUNT` of the light
# one's samples gathered from its `FIRST` on. -1 stands for none.
_HEAVY_1, _HEAVY_2, _LIGHT_1, _LIGHT_2, _FIRST, _COUNT = range(6)


@njit(cache=True)
def refine_packs(
    offsets: NDArray[np.int64],
    pieces: NDArray[np.int64],
    lengths: NDArray[np.int32],
    slots: NDArray[np.int64],
    capacity: int,
    tolerance: float = 0.0005,
    most_moves: int = 8,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Even out each iteration; gives new `(offsets int64[p+1], pieces int64[m])` with the same pack numbers.

    No pack becomes empty or exceeds the capacity, and the greatest work of an iteration never rises.

    Args:
        offsets, pieces: the packs, int64[p+1] and int64[m].
        lengths: int32, length of each piece.
        slots: int64[iterations, ranks], pack numbers; negative where a rank has none.
        capacity: most tokens of a pack.
        tolerance: stop where the heaviest pack is within this share of the mean.
        most_moves: exchanges for each pack of an iteration, at most.
    """
    num_packs = len(offsets) - 1
    pack_of = np.empty(len(pieces), dtype=np.int64)
    for k in range(num_packs):
        pack_of[offsets[k] : offsets[k + 1]] = k
    for i in range(len(slots)):
        row = slots[i][slots[i] >= 0]
        if len(row) > 1:
            _refine_iteration(offsets, pieces, lengths, row, capacity, tolerance, most_moves, pack_of)
    new_offsets = np.zeros(num_packs + 1, dtype=np.int64)
    for j in range(len(pieces)):
        new_offsets[pack_of[j] + 1] += 1
    for k in range(num_packs):
        new_offsets[k + 1] += new_offsets[k]
    place = new_offsets[:-1].copy()
    new_pieces = np.empty(len(pieces), dtype=np.int64)
    for j in range(len(pieces)):
        new_pieces[place[pack_of[j]]] = pieces[j]
        place[pack_of[j]] += 1
    return new_offsets, new_pieces


@njit(cache=True)
def _refine_iteration(
    offsets: NDArray[np.int64],
    pieces: NDArray[np.int64],
    lengths: NDArray[np.int32],
    packs: NDArray[np.int64],
    capacity: int,
    tolerance: float,
    most_moves: int,
    pack_of: NDArray[np.int64],
) -> None:
    """Exchange samples between these packs; writes the new pack of each of their pieces to `pack_of`."""
    num_items = 0
    for k in packs:
        num_items += offsets[k + 1] - offsets[k]
    length = np.empty(num_items, dtype=np.int64)
    place = np.empty(num_items, dtype=np.int64)
    owner = np.empty(num_items, dtype=np.int64)
    tokens = np.zeros(len(packs), dtype=np.int64)
    work = np.zeros(len(packs), dtype=np.int64)
    n = 0
    for p in range(len(packs)):
        for j in range(offsets[packs[p]], offsets[packs[p] + 1]):
            length[n] = lengths[pieces[j]]
            place[n] = j
            owner[n] = p
            tokens[p] += length[n]
            work[p] += length[n] * length[n]
            n += 1
    # By falling length once: one pass over the owners then lists a pack's samples in order.
    order = np.argsort(-length, kind="mergesort")
    length, place, owner = length[order], place[order], owner[order]
    mean = work.sum() / len(packs)
    for _ in range(most_moves * len(packs)):
        heavy = np.argmax(work)
        if work[heavy] <= mean * (1 + tolerance):
            break
        moved = False
        for light in np.argsort(work)[:_MOST_PARTNERS]:
            if light != heavy and _exchange(length, owner, tokens, work, heavy, light, capacity):
                moved = True
                break
        if not moved:
            break
    for n in range(num_items):
        pack_of[place[n]] = packs[owner[n]]


@njit(cache=True)
def _exchange(
    length: NDArray[np.int64],
    owner: NDArray[np.int64],
    tokens: NDArray[np.int64],
    work: NDArray[np.int64],
    heavy: int,
    light: int,
    capacity: int,
) -> bool:
    """Make the exchange that comes nearest to an even split of the two packs' work; False if none helps.

    What remains of the gap is a move's score. An exchange that would turn the gap round to the same size scores no
    better than none, so the greater of the two works always falls.
    """
    gap = work[heavy] - work[light]
    a = np.flatnonzero(owner == heavy)
    b = np.flatnonzero(owner == light)
    room_a, room_b = capacity - tokens[heavy], capacity - tokens[light]
    move = np.full(6, -1, dtype=np.int64)
    score = _try_one(length, a, b, gap, room_b, move, gap)
    score = _try_many(length, a, b, gap, room_a, room_b, move, score)
    if 2 * score > gap:
        score = _try_pairs(length, a, b, gap, room_a, room_b, move, score)
    if score >= gap:
        return False
    for field in (_HEAVY_1, _HEAVY_2):
        if move[field] >= 0:
            _give(length, owner, tokens, work, move[field], heavy, light)
    for field in (_LIGHT_1, _LIGHT_2):
        if move[field] >= 0:
            _give(length, owner, tokens, work, move[field], light, heavy)
    if move[_COUNT] > 0:
        most = length[move[_HEAVY_1]]
        free = most + room_a
        count = 0
        for q in range(move[_FIRST], len(b)):
            if length[b[q]] <= free and length[b[q]] < most:
                free -= length[b[q]]
                _give(length, owner, tokens, work, b[q], light, heavy)
                count += 1
                if count == move[_COUNT]:
                    break
    return True


@njit(cache=True)
def _try_one(
    length: NDArray[np.int64],
    a: NDArray[np.int64],
    b: NDArray[np.int64],
    gap: int,
    room_b: int,
    move: NDArray[np.int64],
    score: int,
) -> int:
    """One sample for nothing, or for a shorter one."""
    for i in a:
        x = length[i]
        if x <= room_b and len(a) > 1 and abs(gap - 2 * x * x) < score:
            score = abs(gap - 2 * x * x)
            move[:] = -1
            move[_HEAVY_1] = i
        for j in b:
            y = length[j]
            if y >= x:
                continue
            if x - y > room_b:
                break
            left = abs(gap - 2 * (x * x - y * y))
            if left < score:
                score = left
                move[:] = -1
                move[_HEAVY_1], move[_LIGHT_1] = i, j
    return score


@njit(cache=True)
def _try_many(
    length: NDArray[np.int64],
    a: NDArray[np.int64],
    b: NDArray[np.int64],
    gap: int,
    room_a: int,
    room_b: int,
    move: NDArray[np.int64],
    score: int,
) -> int:
    """One sample for several shorter ones that fill its place, the longest of them first."""
    for i in a:
        x = length[i]
        if x * x > 2 * gap:
            continue
        if 2 * x * x < gap and score < gap:
            break
        for start in range(0, len(b), max(1, len(b) // _STARTS)):
            free = x + room_a
            total, squares, count = 0, 0, 0
            for q in range(start, len(b)):
                y = length[b[q]]
                if y > free or y >= x:
                    continue
                free -= y
                total += y
                squares += y * y
                count += 1
                left = abs(gap - 2 * (x * x - squares))
                if x - total <= room_b and squares < x * x and left < score:
                    score = left
                    move[:] = -1
                    move[_HEAVY_1], move[_FIRST], move[_COUNT] = i, start, count
    return score


@njit(cache=True)
def _try_pairs(
    length: NDArray[np.int64],
    a: NDArray[np.int64],
    b: NDArray[np.int64],
    gap: int,
    room_a: int,
    room_b: int,
    move: NDArray[np.int64],
    score: int,
) -> int:
    """Two samples for two of about the same sum that are nearer to each other."""
    stride_a, stride_b = max(1, len(a) // _PAIRS), max(1, len(b) // _PAIRS)
    for i1 in range(0, len(a), stride_a):
        for i2 in range(len(a) - 1, i1, -stride_a):
            x1, x2 = length[a[i1]], length[a[i2]]
            for j1 in range(0, len(b), stride_b):
                y1 = length[b[j1]]
                if y1 >= x1:
                    continue
                j2 = _last_at_least(length, b, x1 + x2 - room_b - y1)
                if j2 < 0 or j2 == j1:
                    continue
                y2 = length[b[j2]]
                moved = x1 * x1 + x2 * x2 - y1 * y1 - y2 * y2
                if y1 + y2 <= x1 + x2 + room_a and abs(gap - 2 * moved) < score:
                    score = abs(gap - 2 * moved)
                    move[:] = -1
                    move[_HEAVY_1], move[_HEAVY_2] = a[i1], a[i2]
                    move[_LIGHT_1], move[_LIGHT_2] = b[j1], b[j2]
    return score


@njit(cache=True)
def _last_at_least(length: NDArray[np.int64], items: NDArray[np.int64], least: int) -> int:
    """Place of the shortest item of at least this length among items of falling length; -1 if there is none."""
    low, high = 0, len(items)
    while low < high:
        middle = (low + high) // 2
        if length[items[middle]] >= least:
            low = middle + 1
        else:
            high = middle
    return low - 1


@njit(cache=True)
def _give(
    length: NDArray[np.int64],
    owner: NDArray[np.int64],
    tokens: NDArray[np.int64],
    work: NDArray[np.int64],
    item: int,
    giver: int,
    taker: int,
) -> None:
    owner[item] = taker
    tokens[giver] -= length[item]
    tokens[taker] += length[item]
    work[giver] -= length[item] * length[item]
    work[taker] += length[item] * length[item]
