"""The arithmetic of items in kernels, see `plan.core.items`: what pieces take, and where long items are cut.

A walk up from the end of each branch to the first segment that an earlier branch has kept finds the kept ones, so a
piece costs O(segments of its item).
"""

from __future__ import annotations

from typing import NamedTuple, cast

import numpy as np
from numba import njit

from packer_cli.format.trees import SAMPLE, TURNS, ItemTrees
from packer_cli.plan.core.types import Int32Array, Int64Array

WHOLE = 2**31 - 1
"""`PieceTrees.depth` of a piece that is not cut."""
_WHOLE = cast(int, np.int64(WHOLE))  # numba would compile a function again for each Python integer that it is given.
_ZERO = cast(int, np.int64(0))
_ONE = cast(int, np.int64(1))


class LeftOutBranches(NamedTuple):
    """k runs of branches that are in no piece."""

    item: Int32Array
    """int32[k], rising."""
    first_branch: Int32Array
    """int32[k]"""
    stop_branch: Int32Array
    """int32[k]: one past the last."""


class ItemPieces(NamedTuple):
    """Pieces as kernels take them, int32[m] each; fields as in `Pieces` and `PieceTrees`."""

    item: Int32Array
    first_branch: Int32Array
    stop_branch: Int32Array
    depth: Int32Array
    start: Int32Array
    length: Int32Array
    """Of trees, counted later."""


class _Figures(NamedTuple):
    """Of some branches of an item, cut at a depth."""

    unique: int
    path: int
    loss: int
    work: int
    flat: int


@njit(cache=True, no_cpython_wrapper=True)
def _figures(trees: ItemTrees, item: int, first: int, stop: int, depth: int, scratch: Int64Array) -> _Figures:
    begin, branches = trees.segment_offsets[item], trees.branch_offsets[item]
    ends, is_kept = scratch[0], scratch[1]
    _find_ends(trees, item, ends)
    is_kept[: trees.segment_offsets[item + 1] - begin] = 0
    unique, path, loss, work, flat = _ZERO, _ZERO, _ZERO, _ZERO, _ZERO
    for b in range(branches + first, branches + stop):
        s = np.int64(trees.branch_segments[b])
        whole = min(ends[s], depth)
        flat += whole
        loss += max(_ZERO, whole - trees.first_loss[b])
        while s >= 0 and ends[s] - trees.segment_lengths[begin + s] >= depth:
            s = np.int64(trees.segment_parents[begin + s])
        if not is_kept[s]:  # No other branch that is kept goes on below: it ends in a leaf.
            path += whole
        while s >= 0 and not is_kept[s]:
            is_kept[s] = 1
            above, end = ends[s] - trees.segment_lengths[begin + s], min(ends[s], depth)
            unique += end - above
            work += end * end - above * above
            s = np.int64(trees.segment_parents[begin + s])
    return _Figures(unique, path, loss, work, flat)


@njit(cache=True, no_cpython_wrapper=True)
def _size(found: _Figures, path_percent: int) -> int:
    """What it takes of a capacity, see `plan.core.items`; at most the greatest int32."""
    size = max(found.unique, found.loss)
    if path_percent > 0:
        size = max(size, (100 * found.path + path_percent - 1) // path_percent)
    return min(size, _WHOLE)


@njit(cache=True)
def find_all_ends(trees: ItemTrees, ends: Int64Array) -> None:
    """Write where each segment ends in its branches, int64[S]."""
    for item in range(len(trees.kinds)):
        _find_ends(trees, item, ends[trees.segment_offsets[item] :])


@njit(cache=True)
def measure(
    trees: ItemTrees,
    pieces: ItemPieces,
    scratch: Int64Array,
    length: Int32Array,
    size: Int32Array,
    work: Int64Array,
    path: Int64Array,
    flat: Int64Array,
) -> None:
    """Write to the last five, [m] each; `length` has that of flat samples."""
    for k in range(len(pieces.item)):
        item = np.int64(pieces.item[k])
        if trees.kinds[item] == SAMPLE:
            tokens = np.int64(length[k])
            size[k], work[k], path[k], flat[k] = tokens, tokens * tokens, tokens, tokens
            continue
        first, stop, depth = (
            np.int64(pieces.first_branch[k]),
            np.int64(pieces.stop_branch[k]),
            np.int64(pieces.depth[k]),
        )
        found = _figures(trees, item, first, stop, depth, scratch)
        length[k], size[k] = found.unique, _size(found, _ZERO)
        work[k], path[k], flat[k] = found.work, found.path, found.flat


@njit(cache=True)
def add_branches(
    trees: ItemTrees,
    items: Int32Array,
    lengths: Int32Array,
    first_branch: Int32Array,
    stop_branch: Int32Array,
    depth: Int32Array,
    sums: Int64Array,
    scratch: Int64Array,
) -> None:
    """Add to `sums` (int64[3]), the fields of `BranchFigures`."""
    for k in range(len(items)):
        item = np.int64(items[k])
        if trees.kinds[item] == SAMPLE:
            tokens = np.int64(lengths[k])
            sums[0] += tokens
            sums[1] += tokens
            sums[2] += tokens * tokens
            continue
        _find_ends(trees, item, scratch[0])
        longest = _ZERO
        for b in range(first_branch[k], stop_branch[k]):
            whole = min(scratch[0, trees.branch_segments[trees.branch_offsets[item] + b]], np.int64(depth[k]))
            longest = max(longest, whole)
            sums[1] += whole
            sums[2] += whole * whole
        sums[0] += longest * (stop_branch[k] - first_branch[k])


@njit(cache=True, no_cpython_wrapper=True)
def _find_ends(trees: ItemTrees, item: int, ends: Int64Array) -> None:
    """Write where each segment of an item ends in its branches."""
    begin = trees.segment_offsets[item]
    for s in range(trees.segment_offsets[item + 1] - begin):
        parent = trees.segment_parents[begin + s]
        ends[s] = trees.segment_lengths[begin + s] + (ends[parent] if parent >= 0 else _ZERO)


@njit(cache=True)
def cut(
    trees: ItemTrees,
    items: Int32Array,
    limits: Int64Array,
    pieces: ItemPieces,
    left_out: LeftOutBranches,
    offsets: Int64Array,
    scratch: Int64Array,
) -> int:
    """Write to `pieces`, to `offsets` where those of each item end, and to `left_out`; returns the number of these.

    Args:
        limits: capacity and `path_percent`, and whether samples are divided, and all is left out.
    """
    num, num_left = _ZERO, _ZERO
    for k in range(len(items)):
        item = np.int64(items[k])
        num_branches = trees.branch_offsets[item + 1] - trees.branch_offsets[item]
        first = _ZERO
        if limits[3]:
            num_left = _leave_out(left_out, num_left, item, first, num_branches)
        elif trees.kinds[item] == SAMPLE:
            tokens = np.int64(trees.segment_lengths[trees.segment_offsets[item]])
            for start in range(_ZERO, tokens if limits[2] else limits[0], limits[0]):
                pieces.start[num], pieces.length[num] = start, min(limits[0], tokens - start)
                num = _take(pieces, num, item, _ZERO, num_branches, _WHOLE)
        else:
            while first < num_branches:
                stop, depth = num_branches, _ZERO
                if trees.kinds[item] == TURNS:
                    stop = _last_run(trees, item, first, limits, scratch)
                if stop > first:
                    depth = _greatest_depth(trees, item, first, stop, limits, scratch)
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
def _leave_out(left_out: LeftOutBranches, num: int, item: int, first: int, stop: int) -> int:
    """Add branches to those left out, and to the last run of them where they follow it."""
    if num > 0 and left_out.item[num - 1] == item and left_out.stop_branch[num - 1] == first:
        left_out.stop_branch[num - 1] = stop
        return num
    left_out.item[num], left_out.first_branch[num], left_out.stop_branch[num] = item, first, stop
    return num + 1


@njit(cache=True, no_cpython_wrapper=True)
def _last_run(trees: ItemTrees, item: int, first: int, limits: Int64Array, scratch: Int64Array) -> int:
    """The end of the longest run of branches from `first` on that fits, of at least one. Bisection."""
    low, high = first + 1, trees.branch_offsets[item + 1] - trees.branch_offsets[item]
    while low < high:
        middle = (low + high + 1) // 2
        if _size(_figures(trees, item, first, middle, _WHOLE, scratch), limits[1]) <= limits[0]:
            low = middle
        else:
            high = middle - 1
    return low


@njit(cache=True, no_cpython_wrapper=True)
def _greatest_depth(
    trees: ItemTrees, item: int, first: int, stop: int, limits: Int64Array, scratch: Int64Array
) -> int:
    """The greatest depth at which these branches fit, each with a loss token that it has; 0 for none. Bisection."""
    if _size(_figures(trees, item, first, stop, _WHOLE, scratch), limits[1]) <= limits[0]:
        return _WHOLE
    _find_ends(trees, item, scratch[0])
    low, high = _ONE, _ONE
    for b in range(trees.branch_offsets[item] + first, trees.branch_offsets[item] + stop):
        end = scratch[0, trees.branch_segments[b]]
        high = max(high, end)
        if trees.first_loss[b] < end:
            low = max(low, int(trees.first_loss[b]) + _ONE)
    if _size(_figures(trees, item, first, stop, low, scratch), limits[1]) > limits[0]:
        return _ZERO
    while low < high:
        middle = (low + high + 1) // 2
        if _size(_figures(trees, item, first, stop, middle, scratch), limits[1]) <= limits[0]:
            low = middle
        else:
            high = middle - 1
    return low
