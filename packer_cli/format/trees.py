"""Rows whose samples share prefixes: the prefix trees of items, as shards and token stores hold them.

An *item* is what may not be divided: a sample, a preference pair, a group of completions, the turns of a conversation.
The samples in it are its *branches*. Its *segments* are runs of tokens that the same branches share, in depth-first
order, so a parent stands before its children, and the tokens of a subtree are one run. Token k is visible to token q
if `k <= q < stop[k]`, where `stop[k]` is the end of the subtree of k's segment; flat samples are the special case of
one segment each. The position of a token is its depth: the tokens before it in its branches.

A node of a tree is a token and the one after it, so a fork begins with the last token before it, once in each branch:
every token has one next token, and labels can be shifted as in a flat row. A branch ends where its segment ends.

Price: all functions are O(tokens) or O(segments) numpy passes, times the height of the trees for segments.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from packer_cli.format.ragged import Int64Array, Lists, expand, offsets_of

SHARE_FROM = 128
"""Fewest tokens of a run that is worth sharing; shorter ones stay apart."""

SAMPLE, PAIR, GROUP, TURNS = range(4)
"""Kinds of items: one sample; chosen and rejected; completions of a prompt; the turns of a conversation."""
KINDS = ("sample", "pair", "group", "turns")
"""Names of the kinds of items."""
CHOSEN, REJECTED = range(2)
"""Roles of the branches of a pair; in other items, a branch's role is its number."""
PAIR_ROLES = ("chosen", "rejected")
"""Names of the roles of a pair."""


class Trees(NamedTuple):
    """The trees of a row or an item, which may have several roots."""

    segment_starts: NDArray[Any]
    """int32 or int64 [S+1]: the first token of each segment, then the number of tokens."""
    segment_parents: NDArray[np.int32]
    """int32 [S]: the segment that each one continues, -1 for a root; less than its own number."""
    branch_segments: NDArray[np.int32]
    """int32 [n]: the segment in which each branch ends."""

    @property
    def lengths(self) -> Int64Array:
        """int64 [S]: tokens of each segment."""
        return np.diff(self.segment_starts).astype(np.int64)

    def levels(self) -> list[Int64Array]:
        """List the segments (int64) of each level, the roots first."""
        level = np.flatnonzero(self.segment_parents < 0)
        found = []
        is_next = np.zeros(len(self.segment_parents) + 1, dtype=np.bool_)  # A root's parent is -1, the last one.
        while len(level):
            found.append(level)
            is_next[:] = False
            is_next[level] = True
            level = np.flatnonzero(is_next[self.segment_parents] & (self.segment_parents >= 0))
        return found

    def depths(self) -> Int64Array:
        """Count the tokens before each segment in its branches: int64 [S].

        >>> Trees(np.array([0, 3, 5, 9]), np.array([-1, 0, 0]), np.array([1, 2])).depths().tolist()
        [0, 3, 3]
        """
        lengths, depths = self.lengths, np.zeros(len(self.segment_parents), dtype=np.int64)
        for level in self.levels()[1:]:
            parents = self.segment_parents[level]
            depths[level] = depths[parents] + lengths[parents]
        return depths

    def ends(self) -> Int64Array:
        """Find where each segment ends in its branches: int64 [S]."""
        return self.depths() + self.lengths

    def stops(self) -> Int64Array:
        """Find the end of each segment's subtree in the row: int64 [S].

        >>> Trees(np.array([0, 3, 5, 9]), np.array([-1, 0, 0]), np.array([1, 2])).stops().tolist()
        [9, 5, 9]
        """
        stops = self.segment_starts[1:].astype(np.int64)
        for level in reversed(self.levels()[1:]):
            np.maximum.at(stops, self.segment_parents[level], stops[level])
        return stops

    def positions(self) -> Int64Array:
        """Find the depth of each token: int64 [t]."""
        starts = self.segment_starts[:-1].astype(np.int64)
        return np.arange(self.segment_starts[-1]) + np.repeat(self.depths() - starts, self.lengths)

    def root_borders(self) -> NDArray[np.int32]:
        """Find the begins of the trees, and the end of the last: int32 [roots+1]."""
        roots = np.flatnonzero(self.segment_parents < 0)
        borders: NDArray[np.int32] = self.segment_starts[np.append(roots, len(self.segment_parents))]
        return borders

    def branch_lengths(self) -> Int64Array:
        """Count the tokens of each branch: int64 [n]."""
        return self.ends()[self.branch_segments]

    def leaves(self) -> Int64Array:
        """Find the segments without children, rising: int64."""
        is_leaf = np.ones(len(self.segment_parents) + 1, dtype=np.bool_)
        is_leaf[self.segment_parents] = False  # A root's parent is -1, the last one.
        return np.flatnonzero(is_leaf[:-1])

    def num_path_tokens(self) -> int:
        """Count the tokens of all leaves' paths, K, which a varlen kernel gathers in every layer.

        No other segment needs a path: it stands right before its first child, so its queries are in one run with
        those of the first leaf below.
        """
        return int(self.ends()[self.leaves()].sum())

    def attention_work(self) -> int:
        """Sum up `(p + n)^2 - p^2` over segments of n tokens below p others; of a flat sample, n^2."""
        depths, lengths = self.depths(), self.lengths
        return int(((2 * depths + lengths) * lengths).sum())

    def paths(self, segments: NDArray[np.integer]) -> Lists:
        """List the tokens (int64 [K]) of the paths from the roots to the ends of these segments.

        >>> pair = Trees(np.array([0, 2, 3, 5]), np.array([-1, 0, 0]), np.array([1, 2]))
        >>> pair.paths(pair.branch_segments)
        Lists(offsets=array([0, 3, 7]), values=array([0, 1, 2, 0, 1, 3, 4]))
        """
        steps, step = [], segments.astype(np.int64)
        while (step >= 0).any():
            steps.append(step)
            step = np.where(step >= 0, self.segment_parents[step], -1).astype(np.int64)
        # A row a path, from the root on; -1 before the root.
        chain = np.stack(steps[::-1], axis=1) if steps else np.empty((len(segments), 0), dtype=np.int64)
        of_path = chain[chain >= 0]
        values = expand(self.segment_starts[of_path], self.lengths[of_path])
        return Lists(offsets_of(self.ends()[segments]), values)


class ItemTrees(NamedTuple):
    """The trees of the items of a token store, in the order of its rows: what a plan needs to know of them."""

    kinds: NDArray[np.int8]
    """int8 [i]: `SAMPLE`, `PAIR`, `GROUP` or `TURNS`"""
    segment_offsets: Int64Array
    """int64 [i+1]: item k has the segments `segment_offsets[k]` to `segment_offsets[k + 1] - 1`."""
    segment_ends: NDArray[np.int32]
    """int32 [S]: where each segment ends in its branches; the first one, of an item of one, is all of its tokens."""
    segment_parents: NDArray[np.int32]
    """int32 [S]: as in `Trees`, counted in the item"""
    branch_offsets: Int64Array
    """int64 [i+1]"""
    branch_segments: NDArray[np.int32]
    """int32 [n]: as in `Trees`, counted in the item"""
    first_loss: NDArray[np.int32]
    """int32 [n]: place of the first loss token in each branch; 2^31 - 1 if it has none"""


def find_wrong_tree(trees: Trees, num_tokens: int) -> str | None:
    """Name the fault of the trees of a row of so many tokens, in a few words; return None if they keep every rule."""
    starts, parents, ends = trees
    if len(starts) != len(parents) + 1 or not len(parents):
        return "it has other numbers of segments and parents"
    if starts[0] != 0 or starts[-1] != num_tokens or (np.diff(starts) < 1).any():
        return "its segments do not divide its tokens"
    numbers = np.arange(len(parents))
    if (parents < -1).any() or (parents >= numbers).any():
        return "a segment stands before its parent"
    # In depth-first order, a subtree is a run of segments.
    last, size = numbers.copy(), np.ones(len(parents), dtype=np.int64)
    for level in reversed(trees.levels()[1:]):
        np.maximum.at(last, parents[level], last[level])
        np.add.at(size, parents[level], size[level])
    if (last - numbers + 1 != size).any():
        return "its segments are not in depth-first order"
    if not len(ends) or (ends < 0).any() or (ends >= len(parents)).any():
        return "a branch ends in no segment"
    if not np.array_equal(np.unique(ends), trees.leaves()):
        return "its branches do not end in its leaves"
    return None
