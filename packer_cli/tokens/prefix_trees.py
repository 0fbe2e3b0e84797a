"""Makes the prefix trees of items (see `packer_cli.format.trees`) from the ids of their branches.

Two branches share a segment that begins at depth s if they have their first `s + share_from` nodes in common, a node
being a token and the one after it. So a fork less than `share_from` tokens below the one above it, or below the start,
moves up to there, and each child has its tokens; what has moved counts towards the next run. Children stand in the
order of the first branch that has them.

These are the trees of Tree Training (arXiv 2511.00413) and Preference Packing (arXiv 2602.24082), without short runs.
Price: O(tokens), for any number of branches: 0.5 to 0.9 s for a million of 512 tokens (one core). Memory: the unique
tokens, and 250 bytes for each branch of the item that has the most.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from packer_cli.format.ragged import Lists
from packer_cli.format.tree_parts import TreeLists
from packer_cli.format.trees import SHARE_FROM
from packer_cli.plan.core.types import BoolArray, Int32Array, Int64Array, read_only

NOTHING_SHARED = 2**31 - 1
"""`share_from` with which all branches stay apart."""
_ROOT = 0
_NONE, _UNKNOWN = -1, -2


def make_trees(branches: Lists, items: Int64Array, share_from: int = SHARE_FROM) -> tuple[Lists, TreeLists]:
    """The unique tokens of items, in depth-first order and of the type of `branches`, and their trees.

    Args:
        branches: the ids of each branch, uint16 or int32; none is empty.
        items: int64[i+1], from 0: item k has the branches `items[k]` to `items[k + 1] - 1`, at least one.
        share_from: fewest tokens that are shared, at least 1.

    >>> pair = Lists(np.array([0, 3, 6]), np.array([5, 6, 7, 5, 6, 8], np.int32))
    >>> ids, trees = make_trees(pair, np.array([0, 2]), 1)
    >>> [each.values.tolist() for each in (ids, *trees)]
    [[5, 6, 7, 6, 8], [0, 1, 3, 5], [-1, 0, 0], [1, 2]]
    """
    num_items, num_branches = len(items) - 1, len(branches.offsets) - 1
    ids = np.empty_like(branches.values)  # What is not written to takes no memory.
    starts = np.zeros(2 * num_branches + num_items, dtype=np.int32)
    parents = np.empty(2 * num_branches, dtype=np.int32)
    ends = np.empty(num_branches, dtype=np.int32)
    tokens, segments = (np.zeros(num_items + 1, dtype=np.int64) for _ in range(2))
    given = read_only(branches.values), read_only(branches.offsets), read_only(items)
    _make_trees(*given, share_from, ids, starts, parents, ends, tokens, segments)
    trees = TreeLists(
        Lists(segments + np.arange(num_items + 1), starts[: segments[-1] + num_items]),
        Lists(segments, parents[: segments[-1]]),
        Lists(items, ends),
    )
    return Lists(tokens, ids[: tokens[-1]]), trees


class _Trie(NamedTuple):
    """Nodes of one item, the root first: runs of tokens that the same branches share, however short."""

    end: Int64Array
    """The depth where the run ends."""
    source: Int64Array
    """A branch that has the run."""
    parent: Int64Array
    begin: Int64Array
    """Its first token and the one after it, as one number."""
    number: Int64Array
    """Branches that end in the node; of one with children, 0."""
    is_chosen: BoolArray
    """Whether it is known if it is a segment."""
    is_segment: BoolArray
    leaf: Int64Array
    """int64[n]: the node in which each branch ends; -1: it is too short to share anything."""
    slots: Int64Array
    """A hash table of nodes, by `parent` and `begin`; -1: a free place."""
    path: Int64Array
    """On the way up: nodes, or segments."""


class _Segments(NamedTuple):
    """Those of one item, each by the number of its node or, if it is one branch's alone, by `nodes + branch`."""

    child: Int64Array
    """The first below; -1: none, -2: it is not in the tree yet."""
    last: Int64Array
    """The last below."""
    sibling: Int64Array
    """The next below the same; -1: none"""
    above: Int64Array
    number: Int64Array
    """In depth-first order."""


@njit(cache=True, nogil=True)
def _make_trees(
    values: NDArray[np.integer],
    offsets: Int64Array,
    items: Int64Array,
    share_from: int,
    ids: NDArray[np.integer],
    starts: Int32Array,
    parents: Int32Array,
    ends: Int32Array,
    tokens: Int64Array,
    segments: Int64Array,
) -> None:
    """Write the lists; `tokens` and `segments` are their offsets, int64[i+1]."""
    most = 1
    for item in range(len(items) - 1):
        most = max(most, items[item + 1] - items[item])
    trie, found = _room(most)
    for item in range(len(items) - 1):
        first = segments[item]
        borders = offsets[items[item] : items[item + 1] + 1]
        own_ends = ends[items[item] : items[item + 1]]
        num_nodes = _grow(values, borders, share_from, trie)
        _link(borders, num_nodes, share_from, trie, found)
        num_tokens, number = _emit(
            values, borders, trie, found, ids[tokens[item] :], starts[first + item :], parents[first:], own_ends
        )
        tokens[item + 1], segments[item + 1] = tokens[item] + num_tokens, first + number


@njit(cache=True)
def _room(num_branches: int) -> tuple[_Trie, _Segments]:
    """Of an item of so many branches."""
    nodes, slots = 2 * num_branches, 4
    while slots < 4 * num_branches:
        slots *= 2
    room = np.empty((5, nodes), dtype=np.int64)
    is_so = np.empty((2, nodes), dtype=np.bool_)
    leaf, table, path = np.empty(num_branches, np.int64), np.empty(slots, np.int64), np.empty(nodes + 1, np.int64)
    trie = _Trie(room[0], room[1], room[2], room[3], room[4], is_so[0], is_so[1], leaf, table, path)
    of_all = np.empty((5, nodes + num_branches), dtype=np.int64)
    return trie, _Segments(of_all[0], of_all[1], of_all[2], of_all[3], of_all[4])


@njit(cache=True)
def _grow(values: NDArray[np.integer], borders: Int64Array, share_from: int, trie: _Trie) -> int:
    """Make the trie of the branches that may share something, and return its number of nodes."""
    num_branches, size = len(borders) - 1, 4
    while size < 4 * num_branches:
        size *= 2
    slots = trie.slots[:size]
    slots[:] = _NONE
    count = _add(trie, 0, _ROOT, 0, 0, _ROOT)
    for branch in range(num_branches):
        length = borders[branch + 1] - borders[branch]
        trie.leaf[branch] = _NONE
        if num_branches == 1 or length < share_from:
            continue
        node = _ROOT
        while trie.leaf[branch] == _NONE:
            depth = trie.end[node]
            begin = _begin(values, borders, branch, depth)
            slot = _slot(trie, slots, node, begin)
            below = slots[slot]
            if below == _NONE:
                slots[slot] = trie.leaf[branch] = count
                count = _add(trie, count, node, begin, length, branch)
                break
            shared = _num_shared(values, borders, branch, trie.source[below], depth, trie.end[below])
            if shared < trie.end[below]:
                # The node is cut: what is shared takes its place, and it goes on below that.
                slots[slot] = node = count
                count = _add(trie, node, trie.parent[below], begin, shared, trie.source[below])
                trie.number[node] = 0
                trie.parent[below], trie.begin[below] = node, _begin(values, borders, trie.source[below], shared)
                slots[_slot(trie, slots, node, trie.begin[below])] = below
            elif trie.number[below]:
                trie.number[below] += 1
                trie.leaf[branch] = below
            else:
                node = below
    return count


@njit(cache=True)
def _add(trie: _Trie, node: int, parent: int, begin: int, end: int, source: int) -> int:
    """Add a leaf, and return the number of nodes."""
    trie.parent[node], trie.begin[node], trie.end[node], trie.source[node] = parent, begin, end, source
    trie.number[node], trie.is_chosen[node] = 1, False
    return node + 1


@njit(cache=True)
def _begin(values: NDArray[np.integer], borders: Int64Array, branch: int, depth: int) -> int:
    """A token of a branch and the one after it, as one number."""
    place = borders[branch] + depth
    after = np.int64(0) if place + 1 == borders[branch + 1] else np.int64(values[place + 1]) + 1
    return int((np.int64(values[place]) << 32) | after)


@njit(cache=True)
def _slot(trie: _Trie, slots: Int64Array, parent: int, begin: int) -> int:
    """Where the child of a node that begins so is, or would be."""
    mixed = (np.uint64(begin) ^ np.uint64(parent) * np.uint64(0xC4CEB9FE1A85EC53)) * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(32))) * np.uint64(0xFF51AFD7ED558CCD)
    slot = np.int64((mixed >> np.uint64(32)) & np.uint64(len(slots) - 1))
    while slots[slot] != _NONE and (trie.parent[slots[slot]] != parent or trie.begin[slots[slot]] != begin):
        slot = (slot + 1) & (len(slots) - 1)
    return int(slot)


@njit(cache=True)
def _num_shared(values: NDArray[np.integer], borders: Int64Array, one: int, other: int, depth: int, end: int) -> int:
    """How many nodes, `end` at most, two branches share that share more than `depth`."""
    a, b = borders[one], borders[other]
    lengths = borders[one + 1] - a, borders[other + 1] - b
    stop = min(end + 1, lengths[0], lengths[1])
    k = depth + 1
    while k < stop and values[a + k] == values[b + k]:
        k += 1
    if k > end or (k == lengths[0] and k == lengths[1]):
        return int(min(k, end))
    return k - 1


@njit(cache=True)
def _link(borders: Int64Array, num_nodes: int, share_from: int, trie: _Trie, found: _Segments) -> None:
    """Choose the segments, and link each to the one above it, in the order of the first branches that have them."""
    nodes = len(trie.end)
    found.child[:num_nodes] = _UNKNOWN
    found.child[_ROOT] = _NONE
    trie.is_chosen[_ROOT] = trie.is_segment[_ROOT] = True
    for branch in range(len(borders) - 1):
        leaf, segment = trie.leaf[branch], nodes + branch
        found.child[segment], found.above[segment] = _UNKNOWN, _ROOT
        if leaf != _NONE:
            _choose(leaf, share_from, trie, found)
            if trie.is_segment[leaf]:
                segment = leaf
            else:
                found.above[segment] = found.above[leaf]
        height = 0
        while found.child[segment] == _UNKNOWN:
            trie.path[height] = segment
            height += 1
            segment = found.above[segment]
        for k in range(height - 1, -1, -1):
            segment = trie.path[k]
            above = found.above[segment]
            found.child[segment] = found.sibling[segment] = _NONE
            if found.child[above] == _NONE:
                found.child[above] = segment
            else:
                found.sibling[found.last[above]] = segment
            found.last[above] = segment


@njit(cache=True)
def _choose(leaf: int, share_from: int, trie: _Trie, found: _Segments) -> None:
    """Say of a node and all above it which of them are segments, and where these begin."""
    node, height = leaf, 0
    while not trie.is_chosen[node]:
        trie.path[height] = node
        height += 1
        node = trie.parent[node]
    for k in range(height - 1, -1, -1):
        node = trie.path[k]
        parent = trie.parent[node]
        above = parent if trie.is_segment[parent] else found.above[parent]
        found.above[node], trie.is_chosen[node] = above, True
        is_shared = trie.number[node] != 1
        trie.is_segment[node] = is_shared and trie.end[node] - trie.end[above] >= share_from


@njit(cache=True)
def _emit(
    values: NDArray[np.integer],
    borders: Int64Array,
    trie: _Trie,
    found: _Segments,
    ids: NDArray[np.integer],
    starts: Int32Array,
    parents: Int32Array,
    ends: Int32Array,
) -> tuple[int, int]:
    """Write the segments in depth-first order, and return the numbers of tokens and of segments."""
    nodes, num_tokens, number = len(trie.end), 0, 0
    segment = found.child[_ROOT]
    while segment != _ROOT:
        above = found.above[segment]
        source = trie.source[segment] if segment < nodes else segment - nodes
        begin = borders[source] + trie.end[above]
        stop = borders[source] + trie.end[segment] if segment < nodes else borders[source + 1]
        for place in range(begin, stop):
            ids[num_tokens + place - begin] = values[place]
        num_tokens += stop - begin
        parents[number] = _NONE if above == _ROOT else found.number[above]
        found.number[segment] = number
        number += 1
        starts[number] = num_tokens
        if found.child[segment] != _NONE:
            segment = found.child[segment]
            continue
        while segment != _ROOT and found.sibling[segment] == _NONE:
            segment = found.above[segment]
        if segment != _ROOT:
            segment = found.sibling[segment]
    for branch in range(len(borders) - 1):
        leaf = trie.leaf[branch]
        is_shared = leaf != _NONE and trie.is_segment[leaf]
        ends[branch] = found.number[leaf if is_shared else nodes + branch]
    return num_tokens, number
