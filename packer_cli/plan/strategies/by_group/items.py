"""What arranging a group needs to know of items: two limits of a pack, of tokens and of path tokens, and their work.

Packing algorithms and fillers know one size of a piece, so they take the greater share of the two limits, and the sum
of these is more than a pack takes if some of its items have many path tokens and others few. So before a group is
packed, items of both kinds are joined in pairs, each of which counts as one piece.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from packer_cli.plan.core.cost import pack_sums
from packer_cli.plan.core.types import Int32Array, Int64Array, Pieces

_SHARE = 2
"""A pair takes at most the capacity over this. Larger ones would leave more room than they save."""


class ItemSizes(NamedTuple):
    """m pieces of items."""

    tokens: Int64Array
    """int64[m]: unique tokens."""
    size: Int64Array
    """int64[m]: what each takes of a capacity."""
    paths: Int64Array
    """int64[m]: the same by path tokens."""
    attention: Int64Array
    """int64[m]: attention work."""
    work: Int64Array
    """int64[m]: what the plan evens out."""

    @classmethod
    def of(cls, pieces: Pieces, path_percent: int | None, linear: int) -> ItemSizes | None:
        """None of flat samples."""
        trees, tokens = pieces.trees, pieces.length.astype(np.int64)
        if trees is None:
            return None
        paths = -(-100 * trees.path_tokens // path_percent) if path_percent else np.zeros_like(trees.path_tokens)
        return cls(tokens, trees.size.astype(np.int64), paths, trees.work, trees.work + linear * tokens)

    def taken(self, offsets: Int64Array, pieces: Int32Array) -> Int64Array:
        """What each pack takes of its capacity, int64[p]."""
        return np.maximum(pack_sums(self.size, offsets, pieces), pack_sums(self.paths, offsets, pieces))

    def in_squares(self, work: Int64Array) -> Int64Array:
        """Attention work of packs (int64[p]) on the scale of squared sizes, by which fillers are chosen."""
        squares = np.square(np.maximum(self.size, self.paths), dtype=np.float64).sum()
        return (work * (float(squares) / max(1.0, float(self.attention.sum())))).astype(np.int64)

    def joined(self, own: Int32Array, capacity: int) -> tuple[Int32Array, Int32Array, Int32Array]:
        """Units to pack: of each its size, its piece and the piece that is joined with it or -1 (int32[u] each).

        The pieces with most path tokens beyond their size are joined with those with most tokens beyond their paths.

        Args:
            own: int32[k], the pieces.
        """
        size, paths = self.size[own], self.paths[own]
        over = paths - size
        may_join = np.maximum(size, paths) * 2 * _SHARE <= capacity
        by_paths, by_tokens = (np.flatnonzero(may_join & (sign * over > 0)) for sign in (1, -1))
        number = min(len(by_paths), len(by_tokens))
        one = by_paths[np.argsort(-over[by_paths], kind="stable")][:number]
        other = by_tokens[np.argsort(over[by_tokens], kind="stable")][:number]
        partner = np.full(len(own), -1, dtype=np.int64)
        partner[one] = other
        is_unit = np.ones(len(own), dtype=np.bool_)
        is_unit[other] = False
        first = np.flatnonzero(is_unit)
        second = partner[first]
        has_other = second >= 0
        of_units = (np.where(has_other, values[first] + values[second], values[first]) for values in (size, paths))
        found = np.maximum(*of_units).astype(np.int32)
        return found, own[first], np.where(has_other, own[second], -1).astype(np.int32)


def group_units(
    offsets: Int64Array, units: Int32Array, first: Int32Array, second: Int32Array
) -> tuple[Int64Array, Int32Array]:
    """The packs of pieces, from packs of units and the pieces of each; arguments as `ItemSizes.joined` gives them."""
    pieces = np.stack([first[units], second[units]], axis=1).ravel()
    is_piece = pieces >= 0
    ends = np.append(0, np.cumsum(is_piece))
    return ends[2 * offsets], pieces[is_piece]
