"""Refine for items, whose work does not follow from their size: `refine` with the work of each piece given.

The heaviest pack of an iteration gives a lighter one an item, for nothing or for one with less work, as long as both
stay within the capacity, in tokens and in path tokens. The ideal partner of an item has half of the gap less work than
it, so only the items nearest to that are tried: O(a log b) for packs of a and b items.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from packer_cli.plan.core.cost import segment_sums
from packer_cli.plan.core.groups import UNLIMITED
from packer_cli.plan.core.types import Int32Array, Int64Array
from packer_cli.plan.kernels.balance.exchange import NONE, ONE, ZERO

_MOST_PARTNERS = 31
"""Lighter packs to try before giving up on the heaviest one."""
_GROWTH = 2
"""A pack may grow to this many times the items of the iteration's largest pack."""
_NEAR = 8
"""Items with more work than the ideal partner that are tried, and so many with less."""


class ItemRows(NamedTuple):
    """The packs of an iteration; the kernel keeps them up to date."""

    work: Int64Array
    """int64[packs, width]: items of each pack by falling work."""
    sizes: Int64Array
    """int64[packs, width]: what they take of the capacity."""
    paths: Int64Array
    """int64[packs, width]: what they take of it by path tokens, another limit."""
    pieces: Int64Array
    """int64[packs, width]"""
    numbers: Int64Array
    """int64[packs]: items of each pack, at most `width`."""
    pack_work: Int64Array
    """int64[packs]"""
    pack_sizes: Int64Array
    """int64[packs]"""
    pack_paths: Int64Array
    """int64[packs]"""


def refine_items(
    offsets: Int64Array,
    pieces: Int32Array,
    items: tuple[Int64Array, Int64Array, Int64Array],
    first: int,
    stop: int,
    num_ranks: int,
    capacity: int,
    most: int = UNLIMITED,
    tolerance: float = 0.0002,
    most_tries: int = 64,
) -> None:
    """Even out, in place, the iterations of packs `first .. stop - 1`, each of `num_ranks` consecutive packs.

    No pack becomes empty or exceeds the capacity, and the greatest work of an iteration never increases. In a changed
    iteration, every pack holds its items by falling work.

    Args:
        offsets, pieces: the packs, int64[p+1] and int32[m]; both are rewritten.
        items: what each piece takes of the capacity, what it takes of it by path tokens, and its work; int64 each.
        first, stop: the range of packs; the last iteration may have fewer than `num_ranks`.
        capacity: most of a pack.
        most: most items of a pack.
        tolerance: stop when the heaviest pack is within this share of the mean, or of the heaviest item.
        most_tries: pairs of packs to search for an exchange, per pack of an iteration.
    """
    work = items[2]
    for begin in range(first, stop, num_ranks):
        end = min(begin + num_ranks, stop)
        own = slice(int(offsets[begin]), int(offsets[end]))
        members, starts = pieces[own], offsets[begin:end] - own.start
        of_packs = np.add.reduceat(work[members], starts)
        limit = max(of_packs.mean(), float(work[members].max())) * (1 + tolerance)
        if of_packs.max() <= limit:
            continue
        rows = _to_rows(offsets[begin : end + 1] - own.start, members, items, most)
        exchange_items(rows, capacity, limit, most_tries * (end - begin), _MOST_PARTNERS)
        pieces[own] = rows.pieces[np.arange(rows.pieces.shape[1]) < rows.numbers[:, None]]
        offsets[begin + 1 : end] = own.start + np.cumsum(rows.numbers)[:-1]


def _to_rows(
    offsets: Int64Array, members: Int32Array, items: tuple[Int64Array, Int64Array, Int64Array], most: int
) -> ItemRows:
    sizes, paths, work = items
    count = np.diff(offsets)
    pack = np.repeat(np.arange(len(count)), count)
    order = np.lexsort((-work[members], pack))
    place = np.arange(len(order)) - np.repeat(offsets[:-1], count)
    width = min(len(order), _GROWTH * int(count.max()), most)
    work_of, sizes_of, paths_of, pieces_of = rows = np.zeros((4, len(count), width), dtype=np.int64)
    falling = members[order]
    rows[:, pack, place] = work[falling], sizes[falling], paths[falling], falling
    pack_work, pack_sizes, pack_paths = (segment_sums(values[members], offsets) for values in (work, sizes, paths))
    return ItemRows(work_of, sizes_of, paths_of, pieces_of, count, pack_work, pack_sizes, pack_paths)


@njit(cache=True)
def exchange_items(rows: ItemRows, capacity: int, limit: float, most_tries: int, most_partners: int) -> None:
    """Lower the greatest work of these packs by exchanges, until it is within the limit or no exchange helps.

    Args:
        capacity: most of a pack.
        limit: greatest work at which to stop.
        most_tries: pairs of packs to search for an exchange; the last round may exceed it.
        most_partners: lighter packs to try before giving up on the heaviest one.
    """
    num = len(rows.numbers)
    tried_in = np.empty(num, dtype=np.int64)  # The round that last tried a pack.
    tried_in[:] = NONE
    number, tries = ZERO, ZERO
    while tries < most_tries:
        heavy = ZERO
        for p in range(num):
            if rows.pack_work[p] > rows.pack_work[heavy]:
                heavy = p
        if rows.pack_work[heavy] <= limit:
            return
        tried_in[heavy] = number
        is_done = True
        for _ in range(min(most_partners, num - 1)):
            light = NONE
            for p in range(num):
                if tried_in[p] < number and (light < 0 or rows.pack_work[p] < rows.pack_work[light]):
                    light = p
            tried_in[light] = number
            tries += 1
            given, taken = _best_exchange(rows, heavy, light, capacity)
            if given >= 0:
                _exchange(rows, heavy, light, given, taken)
                is_done = False
                break
        if is_done:
            return
        number += ONE


@njit(cache=True, no_cpython_wrapper=True)
def _best_exchange(rows: ItemRows, heavy: int, light: int, capacity: int) -> tuple[int, int]:
    """Places of the item that the heavy pack gives, and of the one that it takes; -1 for none."""
    gap = rows.pack_work[heavy] - rows.pack_work[light]
    best, given, taken = gap, NONE, NONE
    has_space = rows.numbers[light] < rows.work.shape[1] and rows.numbers[heavy] > 1
    for i in range(rows.numbers[heavy]):
        work, size, paths = rows.work[heavy, i], rows.sizes[heavy, i], rows.paths[heavy, i]
        if has_space and abs(gap - 2 * work) < best and _fit(rows, heavy, light, size, paths, capacity):
            best, given, taken = abs(gap - 2 * work), i, NONE
        near = _num_above(rows.work[light, : rows.numbers[light]], work - gap // 2)
        for j in range(max(near - _NEAR, ZERO), min(near + _NEAR, rows.numbers[light])):
            left = abs(gap - 2 * (work - rows.work[light, j]))
            more, more_paths = size - rows.sizes[light, j], paths - rows.paths[light, j]
            if left < best and _fit(rows, heavy, light, more, more_paths, capacity):
                best, given, taken = left, i, j
    return given, taken


@njit(cache=True, no_cpython_wrapper=True)
def _fit(rows: ItemRows, heavy: int, light: int, size: int, paths: int, capacity: int) -> bool:
    """Whether the light pack has room for so much more, and the heavy one for so much less."""
    light_size, light_paths = rows.pack_sizes[light] + size, rows.pack_paths[light] + paths
    heavy_size, heavy_paths = rows.pack_sizes[heavy] - size, rows.pack_paths[heavy] - paths
    return bool(max(light_size, light_paths, heavy_size, heavy_paths) <= capacity)


@njit(cache=True, no_cpython_wrapper=True)
def _num_above(falling: Int64Array, value: int) -> int:
    """How many of the values, which fall, are above this one. O(log n)."""
    low, high = ZERO, len(falling)
    while low < high:
        middle = (low + high) // 2
        if falling[middle] > value:
            low = middle + 1
        else:
            high = middle
    return low


@njit(cache=True, no_cpython_wrapper=True)
def _exchange(rows: ItemRows, heavy: int, light: int, given: int, taken: int) -> None:
    """Move the items; each pack stays in order, after those of equal work."""
    item = _remove(rows, heavy, given)
    if taken >= 0:
        _insert(rows, heavy, _remove(rows, light, taken))
    _insert(rows, light, item)


@njit(cache=True, no_cpython_wrapper=True)
def _remove(rows: ItemRows, pack: int, place: int) -> tuple[int, int, int, int]:
    """Take an item out: its work, size, paths and piece."""
    work, size, paths = rows.work[pack, place], rows.sizes[pack, place], rows.paths[pack, place]
    piece = rows.pieces[pack, place]
    rows.pack_work[pack] -= work
    rows.pack_sizes[pack] -= size
    rows.pack_paths[pack] -= paths
    rows.numbers[pack] -= ONE
    for q in range(place, rows.numbers[pack]):
        _copy(rows, pack, q + 1, q)
    return work, size, paths, piece


@njit(cache=True, no_cpython_wrapper=True)
def _insert(rows: ItemRows, pack: int, item: tuple[int, int, int, int]) -> None:
    work, size, paths, piece = item
    place = rows.numbers[pack]
    while place > 0 and rows.work[pack, place - 1] < work:
        _copy(rows, pack, place - 1, place)
        place -= 1
    rows.work[pack, place], rows.sizes[pack, place], rows.paths[pack, place] = work, size, paths
    rows.pieces[pack, place] = piece
    rows.pack_work[pack] += work
    rows.pack_sizes[pack] += size
    rows.pack_paths[pack] += paths
    rows.numbers[pack] += ONE


@njit(cache=True, no_cpython_wrapper=True)
def _copy(rows: ItemRows, pack: int, place: int, to: int) -> None:
    for values in (rows.work, rows.sizes, rows.paths, rows.pieces):
        values[pack, to] = values[pack, place]
