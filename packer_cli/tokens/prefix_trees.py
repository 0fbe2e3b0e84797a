"""Makes the prefix trees of items (see `packer_cli.format.trees`) from the ids of their branches.

Two branches share a segment that begins at depth s if they have their first `s + share_from` nodes in common, a node
being a token and the one after it. So a fork less than `share_from` tokens below the one above it, or below the start,
moves up to there, and each child has its tokens; what has moved counts towards the next run. Children stand in the
order of the first branch that has them.

These are the trees of Tree Training (arXiv 2511.00413) and Preference Packing (arXiv 2602.24082), without short runs.
Price: O(tokens), and at a fork of many ways a comparison of two numbers for each two of these: 0.5 to 1 s for a
million branches of 512 tokens (one core). Memory: the unique tokens, and 56 bytes for each branch of the item that has
the most.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from packer_cli.format.arrays import Columns
from packer_cli.format.ragged import Lists
from packer_cli.format.trees import SHARE_FROM, Trees
from packer_cli.jit import njit
from packer_cli.plan.core.types import Int64Array, read_only

NOTHING_SHARED = 2**31 - 1
"""`share_from` with which all branches stay apart."""
_NONE = -1


def make_trees(branches: Lists, items: Int64Array, share_from: int = SHARE_FROM) -> tuple[Lists, Columns]:
    """Make the unique tokens of items, in depth-first order and of the type of `branches`, and the lists of their
    trees.

    Args:
        branches: the ids of each branch, uint16 or int32; none is empty.
        items: int64[i+1], from 0: item k has the branches `items[k]` to `items[k + 1] - 1`, at least one.
        share_from: fewest tokens that are shared, at least 1.

    >>> pair = Lists(np.array([0, 3, 6]), np.array([5, 6, 7, 5, 6, 8], np.int32))
    >>> ids, trees = make_trees(pair, np.array([0, 2]), 1)
    >>> [each.values.tolist() for each in (ids, *trees.values())]
    [[5, 6, 7, 6, 8], [0, 1, 3, 5], [-1, 0, 0], [1, 2]]
    """
    num_items, num_branches = len(items) - 1, len(branches.offsets) - 1
    made = Trees(
        segment_starts=np.zeros(2 * num_branches + num_items, dtype=np.int32),
        segment_parents=np.empty(2 * num_branches, dtype=np.int32),
        branch_segments=np.empty(num_branches, dtype=np.int32),
    )
    tokens, segments = (np.zeros(num_items + 1, dtype=np.int64) for _ in range(2))
    unique = Lists(tokens, np.empty_like(branches.values))  # What is not written to takes no memory.
    given = Lists(read_only(branches.offsets), read_only(branches.values))
    _make_trees(given, read_only(items), share_from, unique, made, segments)
    trees = {
        "segment_starts": Lists(segments + np.arange(num_items + 1), made.segment_starts[: segments[-1] + num_items]),
        "segment_parents": Lists(segments, made.segment_parents[: segments[-1]]),
        "branch_segments": Lists(items, made.branch_segments),
    }
    return unique._replace(values=unique.values[: tokens[-1]]), trees


@njit(cache=True, nogil=True)
def _make_trees(
    branches: Lists, items: Int64Array, share_from: int, unique: Lists, made: Trees, segments: Int64Array
) -> None:
    """Write the lists; `segments` is the offsets of those of trees, int64[i+1]."""
    tokens, ids = unique
    starts, parents, ends = made
    most = 1
    for item in range(len(items) - 1):
        most = max(most, items[item + 1] - items[item])
    room, stack = np.empty((4, most), dtype=np.int64), np.empty((most, 3), dtype=np.int64)
    for item in range(len(items) - 1):
        begin, end, first = items[item], items[item + 1], segments[item]
        of = Lists(branches.offsets[begin : end + 1], branches.values)
        own = Trees(starts[first + item :], parents[first:], ends[begin:end])
        num_tokens, number = _make_tree(of, share_from, ids[tokens[item] :], own, room, stack)
        tokens[item + 1], segments[item + 1] = tokens[item] + num_tokens, first + number


@njit(cache=True)
def _make_tree(
    of: Lists, share_from: int, ids: NDArray[np.integer], made: Trees, room: Int64Array, stack: Int64Array
) -> tuple[int, int]:
    """Write the segments of an item in depth-first order, and return the numbers of tokens and of segments."""
    borders, values = of
    link, num_tokens, number = room[0], 0, 0
    for branch in range(len(borders) - 1):
        link[branch] = branch + 1
    link[len(borders) - 2] = _NONE
    height = _divide(of, share_from, room, stack, 0, 0, 0, _NONE)
    while height:
        height -= 1
        one, depth, parent = stack[height]
        end, other = borders[one + 1] - borders[one], link[one]
        while other != _NONE:
            end = _num_shared(of, one, other, depth + share_from - 1, end)
            other = link[other]
        for place in range(depth, end):
            ids[num_tokens + place - depth] = values[borders[one] + place]
        num_tokens += end - depth
        made.segment_parents[number] = parent
        made.segment_starts[number + 1] = num_tokens
        if borders[one] + end == borders[one + 1]:  # Of a branch alone, or of equal ones.
            while one != _NONE:
                made.branch_segments[one] = number
                one = link[one]
        else:
            height = _divide(of, share_from, room, stack, height, one, end, number)
        number += 1
    return num_tokens, number


@njit(cache=True)
def _divide(
    of: Lists, share_from: int, room: Int64Array, stack: Int64Array, height: int, first: int, depth: int, parent: int
) -> int:
    """Divide a list of branches, given by its first one, into those of the segments that begin at a depth.

    These are put on the stack, the first on top; returns its height. Below a segment, at least two are made.
    """
    link, keys, firsts, lasts = room
    num_groups, branch, end = 0, first, depth + share_from
    while branch != _NONE:
        following, group, key = link[branch], 0, _key(of, branch, depth, share_from)
        while group < num_groups and (
            keys[group] != key or key == _NONE or _num_shared(of, firsts[group], branch, depth, end) < end
        ):
            group += 1
        if group < num_groups:
            link[lasts[group]] = branch
        else:
            keys[group], firsts[group] = key, branch
            num_groups += 1
        lasts[group], link[branch] = branch, _NONE
        branch = following
    for group in range(num_groups):
        place = height + num_groups - 1 - group
        stack[place, 0], stack[place, 1], stack[place, 2] = firsts[group], depth, parent
    return height + num_groups


@njit(cache=True)
def _key(of: Lists, branch: int, depth: int, share_from: int) -> int:
    """Make a number that is equal for branches that share a segment from a depth on, and for few others.

    It is that of the first token and of the last node that they must share; -1: the branch is too short for any.
    """
    begin, stop = of.offsets[branch] + depth, of.offsets[branch + 1]
    last = begin + share_from - 1
    if last >= stop:
        return _NONE
    after = np.int64(of.values[last + 1]) + 1 if last + 1 < stop else np.int64(0)
    node = np.uint64(np.int64(of.values[last]) << 32 | after)
    mixed = (node ^ np.uint64(of.values[begin]) << np.uint64(16)) * np.uint64(0x9E3779B97F4A7C15)
    return int(mixed >> np.uint64(1))


@njit(cache=True)
def _num_shared(of: Lists, one: int, other: int, depth: int, end: int) -> int:
    """Count the nodes, `end` at most, that two branches share that have the same tokens before `depth`."""
    borders, values = of
    a, b = borders[one], borders[other]
    lengths = borders[one + 1] - a, borders[other + 1] - b
    stop = min(end + 1, lengths[0], lengths[1])
    k = depth
    while k < stop and values[a + k] == values[b + k]:
        k += 1
    if k > end or (k == lengths[0] and k == lengths[1]):
        return int(min(k, end))
    return k - 1
