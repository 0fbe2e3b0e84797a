"""The arithmetic of items in kernels, see `plan.core.items`: what pieces take, and where long items are cut.

A walk up from the end of each branch to the first segment that an earlier branch has kept finds the kept ones, so a
piece costs O(segments of its item).
"""

from __future__ import annotations

from typing import cast

import numpy as np

from packer_cli.format.trees import SAMPLE, TURNS, ItemTrees
from packer_cli.jit import njit
from packer_cli.plan.core.types import WHOLE, BoolArray, Int32Array, Int64Array, Lost

_Branches = tuple[Int32Array, Int32Array, Int32Array]
"""The columns `first_branch`, `stop_branch` and `depth` of `Pieces`."""
_Takes = tuple[Int32Array, Int32Array, Int64Array, Int64Array]
"""The columns `length`, `loss_terms`, `work` and `path_tokens` of `Pieces`."""

_WHOLE = cast(int, np.int64(WHOLE))  # numba would compile a function again for each Python integer that it is given.
_ZERO = cast(int, np.int64(0))
_ONE = cast(int, np.int64(1))


@njit(cache=True, no_cpython_wrapper=True)
def _room(trees: ItemTrees) -> BoolArray:
    """Scratch for `_figures`: whether each segment of an item is kept."""
    most = _ZERO
    for item in range(len(trees.kinds)):
        most = max(most, trees.segment_offsets[item + 1] - trees.segment_offsets[item])
    return np.empty(most, dtype=np.bool_)


@njit(cache=True, no_cpython_wrapper=True)
def _above(trees: ItemTrees, begin: int, segment: int) -> int:
    """Find the beginning of a segment in its branches; `begin` is the first segment of its item."""
    parent = np.int64(trees.segment_parents[begin + segment])
    return int(trees.segment_ends[begin + parent]) if parent >= 0 else _ZERO


@njit(cache=True, no_cpython_wrapper=True)
def _figures(
    trees: ItemTrees, is_kept: BoolArray, item: int, first: int, stop: int, depth: int
) -> tuple[int, int, int, int]:
    """Count unique tokens, path tokens, loss terms and attention work of some branches of an item, cut at a depth."""
    begin, branches = trees.segment_offsets[item], trees.branch_offsets[item]
    is_kept[: trees.segment_offsets[item + 1] - begin] = False
    unique, path, loss, work = _ZERO, _ZERO, _ZERO, _ZERO
    for b in range(branches + first, branches + stop):
        s = np.int64(trees.branch_segments[b])
        whole = min(int(trees.segment_ends[begin + s]), depth)
        loss += max(_ZERO, whole - trees.first_loss[b])
        while _above(trees, begin, s) >= depth:
            s = np.int64(trees.segment_parents[begin + s])
        if not is_kept[s]:  # No other branch that is kept goes on below: it ends in a leaf.
            path += whole
        while s >= 0 and not is_kept[s]:
            is_kept[s] = True
            above, end = _above(trees, begin, s), min(int(trees.segment_ends[begin + s]), depth)
            unique += end - above
            work += end * end - above * above
            s = np.int64(trees.segment_parents[begin + s])
    return unique, path, loss, work


@njit(cache=True)
def measure(trees: ItemTrees, sample: Int32Array, branches: _Branches, takes: _Takes) -> None:
    """Write what pieces of items take to them, which have the lengths of flat samples."""
    (first_branch, stop_branch, depth), (length, loss_terms, work, path_tokens) = branches, takes
    is_kept = _room(trees)
    for k in range(len(sample)):
        item = np.int64(sample[k])
        if trees.kinds[item] == SAMPLE:
            tokens = np.int64(length[k])
            loss_terms[k], work[k], path_tokens[k] = tokens, tokens * tokens, tokens
            continue
        first, stop = np.int64(first_branch[k]), np.int64(stop_branch[k])
        length[k], path_tokens[k], loss, work[k] = _figures(trees, is_kept, item, first, stop, np.int64(depth[k]))
        loss_terms[k] = min(loss, _WHOLE)


@njit(cache=True)
def cut(
    trees: ItemTrees,
    items: Int32Array,
    most: tuple[int, int, int],
    divides: bool,
    sample: Int32Array,
    start: Int32Array,
    length: Int32Array,
    branches: _Branches,
    left_out: Lost,
    offsets: Int64Array,
) -> int:
    """Write the pieces, to `offsets` where those of each item end, and to `left_out`; returns the number of these.

    Args:
        most: the most of each need of a piece.
        divides: whether flat samples are cut into several pieces, rather than cut off.
    """
    is_kept = _room(trees)
    num, num_left = _ZERO, _ZERO
    capacity = np.int64(most[0])
    for k in range(len(items)):
        item = np.int64(items[k])
        num_branches = trees.branch_offsets[item + 1] - trees.branch_offsets[item]
        first = _ZERO
        if trees.kinds[item] == SAMPLE:
            tokens = np.int64(trees.segment_ends[trees.segment_offsets[item]])
            for begin in range(_ZERO, tokens if divides else capacity, capacity):
                start[num], length[num] = begin, min(capacity, tokens - begin)
                num = _take(sample, branches, num, item, _ZERO, num_branches, _WHOLE)
        else:
            while first < num_branches:
                stop, depth = num_branches, _ZERO
                if trees.kinds[item] == TURNS:
                    stop = _last_run(trees, is_kept, item, first, most)
                if stop > first:
                    depth = _greatest_depth(trees, is_kept, item, first, stop, most)
                if depth > 0:
                    num = _take(sample, branches, num, item, first, stop, depth)
                else:
                    num_left = _leave_out(left_out, num_left, item, first, stop)
                first = stop
        offsets[k + 1] = num
    return num_left


@njit(cache=True, no_cpython_wrapper=True)
def _take(sample: Int32Array, branches: _Branches, num: int, item: int, first: int, stop: int, depth: int) -> int:
    sample[num], branches[0][num], branches[1][num], branches[2][num] = item, first, stop, depth
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
def _fit(
    trees: ItemTrees, is_kept: BoolArray, item: int, first: int, stop: int, depth: int, most: tuple[int, int, int]
) -> bool:
    """Whether these branches, cut at a depth, are within the limits."""
    unique, path, loss, _ = _figures(trees, is_kept, item, first, stop, depth)
    return unique <= most[0] and loss <= most[1] and path <= most[2]


@njit(cache=True, no_cpython_wrapper=True)
def _last_run(trees: ItemTrees, is_kept: BoolArray, item: int, first: int, most: tuple[int, int, int]) -> int:
    """Find the end of the longest run of branches from `first` on that fits, of at least one. Bisection."""
    low, high = first + 1, trees.branch_offsets[item + 1] - trees.branch_offsets[item]
    while low < high:
        middle = (low + high + 1) // 2
        if _fit(trees, is_kept, item, first, middle, _WHOLE, most):
            low = middle
        else:
            high = middle - 1
    return low


@njit(cache=True, no_cpython_wrapper=True)
def _greatest_depth(
    trees: ItemTrees, is_kept: BoolArray, item: int, first: int, stop: int, most: tuple[int, int, int]
) -> int:
    """Find the greatest depth at which these branches fit, each with a loss token that it has; 0 for none.
    Bisection."""
    if _fit(trees, is_kept, item, first, stop, _WHOLE, most):
        return _WHOLE
    low, high = _ONE, _ONE
    for b in range(trees.branch_offsets[item] + first, trees.branch_offsets[item] + stop):
        end = int(trees.segment_ends[trees.segment_offsets[item] + trees.branch_segments[b]])
        high = max(high, end)
        if trees.first_loss[b] < end:
            low = max(low, int(trees.first_loss[b]) + _ONE)
    if not _fit(trees, is_kept, item, first, stop, low, most):
        return _ZERO
    while low < high:
        middle = (low + high + 1) // 2
        if _fit(trees, is_kept, item, first, stop, middle, most):
            low = middle
        else:
            high = middle - 1
    return low
