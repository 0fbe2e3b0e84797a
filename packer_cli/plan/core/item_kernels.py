"""The arithmetic of items in kernels, see `plan.core.items`: what pieces take, and where long items are cut.

A walk up from the end of each branch to the first segment that an earlier branch has kept finds the kept ones, so a
piece costs O(segments of its item).
"""

from __future__ import annotations

from typing import NamedTuple, cast

import numpy as np
from numba import njit

from packer_cli.format.trees import SAMPLE, TURNS, ItemTrees
from packer_cli.plan.core.types import WHOLE, BoolArray, Int32Array, Int64Array, ItemRule, Lost

_WHOLE = cast(int, np.int64(WHOLE))  # numba would compile a function again for each Python integer that it is given.
_ZERO = cast(int, np.int64(0))
_ONE = cast(int, np.int64(1))


class ItemPieces(NamedTuple):
    """Pieces as kernels take them and write to them; fields as in `Pieces` and `PieceTrees`."""

    item: Int32Array
    start: Int32Array
    length: Int32Array
    first_branch: Int32Array
    stop_branch: Int32Array
    depth: Int32Array
    loss_terms: Int32Array
    work: Int64Array
    path_tokens: Int64Array


class Store(NamedTuple):
    """The items of a store as kernels take them."""

    trees: ItemTrees
    ends: Int64Array
    """int64[S]: where each segment ends in its branches."""
    is_kept: BoolArray
    """Scratch: whether each segment of an item is kept."""


class _Figures(NamedTuple):
    """Of some branches of an item, cut at a depth."""

    unique: int
    path: int
    loss: int
    work: int


@njit(cache=True)
def find_ends(trees: ItemTrees, ends: Int64Array) -> None:
    """Write where each segment ends in its branches, int64[S]."""
    for item in range(len(trees.kinds)):
        begin = trees.segment_offsets[item]
        for s in range(begin, trees.segment_offsets[item + 1]):
            parent = trees.segment_parents[s]
            ends[s] = trees.segment_lengths[s] + (ends[begin + parent] if parent >= 0 else _ZERO)


@njit(cache=True, no_cpython_wrapper=True)
def _figures(store: Store, item: int, first: int, stop: int, depth: int) -> _Figures:
    trees, ends, is_kept = store
    begin, branches = trees.segment_offsets[item], trees.branch_offsets[item]
    is_kept[: trees.segment_offsets[item + 1] - begin] = False
    unique, path, loss, work = _ZERO, _ZERO, _ZERO, _ZERO
    for b in range(branches + first, branches + stop):
        s = np.int64(trees.branch_segments[b])
        whole = min(ends[begin + s], depth)
        loss += max(_ZERO, whole - trees.first_loss[b])
        while ends[begin + s] - trees.segment_lengths[begin + s] >= depth:
            s = np.int64(trees.segment_parents[begin + s])
        if not is_kept[s]:  # No other branch that is kept goes on below: it ends in a leaf.
            path += whole
        while s >= 0 and not is_kept[s]:
            is_kept[s] = True
            above, end = ends[begin + s] - trees.segment_lengths[begin + s], min(ends[begin + s], depth)
            unique += end - above
            work += end * end - above * above
            s = np.int64(trees.segment_parents[begin + s])
    return _Figures(unique, path, loss, work)


@njit(cache=True)
def measure(store: Store, pieces: ItemPieces) -> None:
    """Write what pieces take to them, which have the lengths of flat samples."""
    for k in range(len(pieces.item)):
        item = np.int64(pieces.item[k])
        if store.trees.kinds[item] == SAMPLE:
            tokens = np.int64(pieces.length[k])
            pieces.loss_terms[k], pieces.work[k] = tokens, tokens * tokens
            pieces.path_tokens[k] = tokens
            continue
        first, stop = np.int64(pieces.first_branch[k]), np.int64(pieces.stop_branch[k])
        figures = _figures(store, item, first, stop, np.int64(pieces.depth[k]))
        pieces.length[k], pieces.loss_terms[k] = figures.unique, min(figures.loss, _WHOLE)
        pieces.work[k], pieces.path_tokens[k] = figures.work, figures.path


@njit(cache=True)
def cut(
    store: Store, items: Int32Array, rule: ItemRule, pieces: ItemPieces, left_out: Lost, offsets: Int64Array
) -> int:
    """Write to `pieces`, to `offsets` where those of each item end, and to `left_out`; returns the number of these."""
    trees = store.trees
    num, num_left = _ZERO, _ZERO
    capacity = np.int64(rule.capacity)
    for k in range(len(items)):
        item = np.int64(items[k])
        num_branches = trees.branch_offsets[item + 1] - trees.branch_offsets[item]
        first = _ZERO
        if rule.drops:
            num_left = _leave_out(left_out, num_left, item, first, num_branches)
        elif trees.kinds[item] == SAMPLE:
            tokens = np.int64(trees.segment_lengths[trees.segment_offsets[item]])
            for start in range(_ZERO, tokens if rule.divides else capacity, capacity):
                pieces.start[num], pieces.length[num] = start, min(capacity, tokens - start)
                num = _take(pieces, num, item, _ZERO, num_branches, _WHOLE)
        else:
            while first < num_branches:
                stop, depth = num_branches, _ZERO
                if trees.kinds[item] == TURNS:
                    stop = _last_run(store, item, first, rule)
                if stop > first:
                    depth = _greatest_depth(store, item, first, stop, rule)
                if depth > 0:
                    num = _take(pieces, num, item, first, stop, depth)
                else:
                    num_left = _leave_out(left_out, num_left, item, first, stop)
                first = stop
        offsets[k + 1] = num
    return num_left


@njit(cache=True, no_cpython_wrapper=True)
def _take(pieces: ItemPieces, num: int, item: int, first: int, stop: int, depth: int) -> int:
    pieces.item[num], pieces.first_branch[num], pieces.stop_branch[num], pieces.depth[num] = item, first, stop, depth
    return num + 1


@njit(cache=True, no_cpython_wrapper=True)
def _leave_out(left_out: Lost, num: int, item: int, first: int, stop: int) -> int:
    """Add branches to those left out, and to the last run of them where they follow it."""
    if num > 0 and left_out.sample[num - 1] == item and left_out.stop_branch[num - 1] == first:
        left_out.stop_branch[num - 1] = stop
        return num
    left_out.sample[num], left_out.first_branch[num], left_out.stop_branch[num] = item, first, stop
    return num + 1


@njit(cache=True, no_cpython_wrapper=True)
def _fit(store: Store, item: int, first: int, stop: int, depth: int, rule: ItemRule) -> bool:
    """Whether these branches, cut at a depth, are within the capacity."""
    found = _figures(store, item, first, stop, depth)
    is_within = found.unique <= rule.capacity and found.loss <= rule.most_loss
    return is_within and found.path <= rule.most_paths


@njit(cache=True, no_cpython_wrapper=True)
def _last_run(store: Store, item: int, first: int, rule: ItemRule) -> int:
    """The end of the longest run of branches from `first` on that fits, of at least one. Bisection."""
    low, high = first + 1, store.trees.branch_offsets[item + 1] - store.trees.branch_offsets[item]
    while low < high:
        middle = (low + high + 1) // 2
        if _fit(store, item, first, middle, _WHOLE, rule):
            low = middle
        else:
            high = middle - 1
    return low


@njit(cache=True, no_cpython_wrapper=True)
def _greatest_depth(store: Store, item: int, first: int, stop: int, rule: ItemRule) -> int:
    """The greatest depth at which these branches fit, each with a loss token that it has; 0 for none. Bisection."""
    if _fit(store, item, first, stop, _WHOLE, rule):
        return _WHOLE
    trees = store.trees
    low, high = _ONE, _ONE
    for b in range(trees.branch_offsets[item] + first, trees.branch_offsets[item] + stop):
        end = store.ends[trees.segment_offsets[item] + trees.branch_segments[b]]
        high = max(high, end)
        if trees.first_loss[b] < end:
            low = max(low, int(trees.first_loss[b]) + _ONE)
    if not _fit(store, item, first, stop, low, rule):
        return _ZERO
    while low < high:
        middle = (low + high + 1) // 2
        if _fit(store, item, first, stop, middle, rule):
            low = middle
        else:
            high = middle - 1
    return low
