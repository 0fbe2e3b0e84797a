"""Refine for items, whose work does not follow from their size: `refine` with the work of each piece given.

The heaviest pack of an iteration gives a lighter one an item, for nothing or for one with less work, as long as both
stay within every limit. The ideal partner of an item has half of the gap less work than
it, so only the items nearest to that are tried: O(a log b) for packs of a and b items.
"""

from __future__ import annotations

import numpy as np

from packer_cli.jit import njit
from packer_cli.plan.core.csr import num_at_least
from packer_cli.plan.core.types import Int64Array
from packer_cli.plan.kernels.exchange import MOST_PARTNERS, NONE, ONE, ZERO, next_light

_WORK, _LAST = 0, -1
"""The numbers of items and packs, see `exchange_items`."""
_NEAR = 8
"""Items with more work than the ideal partner that are tried, and so many with less."""


@njit(cache=True)
def exchange_items(items: Int64Array, totals: Int64Array, limits: Int64Array, limit: float, most_tries: int) -> None:
    """Lower the greatest work of these packs by exchanges, until it is within the limit or no exchange helps.

    Args:
        items: int64[r+2, packs, width], of the items of each pack, by falling work: work; the r needs; and its piece.
        totals: int64[r+2, packs], the sums of these, and last the number of items, at most `width`. Both are kept up
            to date.
        limits: int64[r], the most of each need of a pack.
        limit: greatest work at which to stop.
        most_tries: pairs of packs to search for an exchange; the last round may exceed it.
    """
    num, of_packs = totals.shape[1], totals[_WORK]
    tried_in = np.empty(num, dtype=np.int64)  # The round that last tried a pack.
    tried_in[:] = NONE
    number, tries = ZERO, ZERO
    while tries < most_tries:
        heavy = of_packs.argmax()
        if of_packs[heavy] <= limit:
            return
        tried_in[heavy] = number
        is_done = True
        for _ in range(min(MOST_PARTNERS, num - 1)):
            light = next_light(of_packs, tried_in, number)
            tries += 1
            given, taken = _best_exchange(items, totals, heavy, light, limits)
            if given >= 0:
                _exchange(items, totals, heavy, light, given, taken)
                is_done = False
                break
        if is_done:
            return
        number += ONE


@njit(cache=True, no_cpython_wrapper=True)
def _best_exchange(
    items: Int64Array, totals: Int64Array, heavy: int, light: int, limits: Int64Array
) -> tuple[int, int]:
    """Find the places of the item that the heavy pack gives, and of the one that it takes; -1 for none."""
    gap, numbers = totals[_WORK, heavy] - totals[_WORK, light], totals[_LAST]
    best, given, taken = gap, NONE, NONE
    has_space = numbers[light] < items.shape[2] and numbers[heavy] > 1
    others = items[_WORK, light, : numbers[light]]
    for i in range(numbers[heavy]):
        work = items[_WORK, heavy, i]
        if has_space and abs(gap - 2 * work) < best and _fit(items, totals, heavy, light, i, NONE, limits):
            best, given, taken = abs(gap - 2 * work), i, NONE
        near = num_at_least(others, work - gap // 2 + 1)
        for j in range(max(near - _NEAR, ZERO), min(near + _NEAR, len(others))):
            left = abs(gap - 2 * (work - others[j]))
            if left < best and _fit(items, totals, heavy, light, i, j, limits):
                best, given, taken = left, i, j
    return given, taken


@njit(cache=True, no_cpython_wrapper=True)
def _fit(
    items: Int64Array, totals: Int64Array, heavy: int, light: int, given: int, taken: int, limits: Int64Array
) -> bool:
    """Whether both packs are within all limits after an exchange."""
    for k in range(1, len(limits) + 1):
        more = items[k, heavy, given] - (items[k, light, taken] if taken >= 0 else ZERO)
        if max(totals[k, light] + more, totals[k, heavy] - more) > limits[k - 1]:
            return False
    return True


@njit(cache=True, no_cpython_wrapper=True)
def _exchange(items: Int64Array, totals: Int64Array, heavy: int, light: int, given: int, taken: int) -> None:
    """Move the items; each pack stays in order, after those of equal work."""
    item = _remove(items, totals, heavy, given)
    if taken >= 0:
        _insert(items, totals, heavy, _remove(items, totals, light, taken))
    _insert(items, totals, light, item)


@njit(cache=True, no_cpython_wrapper=True)
def _remove(items: Int64Array, totals: Int64Array, pack: int, place: int) -> Int64Array:
    """Take an item out: int64[r+2]."""
    item = items[:, pack, place].copy()
    totals[:_LAST, pack] -= item[:_LAST]
    totals[_LAST, pack] -= ONE
    for values in items[:, pack]:
        for q in range(place, totals[_LAST, pack]):
            values[q] = values[q + 1]
    return item


@njit(cache=True, no_cpython_wrapper=True)
def _insert(items: Int64Array, totals: Int64Array, pack: int, item: Int64Array) -> None:
    number = totals[_LAST, pack]
    place = num_at_least(items[_WORK, pack, :number], item[_WORK])
    for k in range(len(item)):
        values = items[k, pack]
        for q in range(number, place, -1):
            values[q] = values[q - 1]
        values[place] = item[k]
    totals[:_LAST, pack] += item[:_LAST]
    totals[_LAST, pack] += ONE
