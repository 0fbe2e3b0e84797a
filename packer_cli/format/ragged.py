"""Lists of numbers in flat arrays (CSR): the begin of each, and all of their items. O(lists + items) numpy passes."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Int64Array = NDArray[np.int64]


class Lists(NamedTuple):
    """A column of lists: those of row k are `values[offsets[k]:offsets[k + 1]]`."""

    offsets: Int64Array
    """int64[k+1], from 0"""
    values: NDArray[Any]
    """The items of all rows, one row after another."""

    def row(self, i: int) -> NDArray[Any]:
        """Return the items of row `i`, a view."""
        offset = self.offsets.item
        return self.values[offset(i) : offset(i + 1)]

    def take(self, rows: NDArray[np.integer]) -> Lists:
        """Take the lists of these rows (int[m]), in their order.

        >>> Lists(np.array([0, 1, 3]), np.array([7, 8, 9])).take(np.array([1, 0]))
        Lists(offsets=array([0, 2, 3]), values=array([8, 9, 7]))
        """
        sizes = np.diff(self.offsets)[rows]
        return Lists(offsets_of(sizes), self.values[expand(self.offsets[:-1][rows], sizes)])


def offsets_of(sizes: NDArray[Any]) -> Int64Array:
    """Find the begins of lists of these sizes (int[m]), and the end of the last one: int64[m+1].

    >>> offsets_of(np.array([2, 0, 1])).tolist()
    [0, 2, 2, 3]
    """
    return np.append(0, np.cumsum(sizes, dtype=np.int64))


def expand(first: NDArray[Any], num: NDArray[Any]) -> Int64Array:
    """List the numbers of m runs, one run after another: int64[sum].

    Args:
        first, num: integers [m]: where each run begins, and how many numbers it has.

    >>> expand(np.array([7, 3]), np.array([1, 2])).tolist()
    [7, 3, 4]
    """
    ends = np.cumsum(num, dtype=np.int64)
    numbers: Int64Array = np.arange(ends[-1] if len(ends) else 0) + np.repeat(first - (ends - num), num)
    return numbers


def owners(num: NDArray[Any]) -> Int64Array:
    """Find, for each item of m lists of these sizes (int[m]), the number of its list: int64[sum].

    >>> owners(np.array([2, 0, 1])).tolist()
    [0, 0, 2]
    """
    return np.repeat(np.arange(len(num)), num)


def begins_run(*keys: NDArray[Any]) -> NDArray[np.bool_]:
    """Whether a place (bool[n]) is the first, or differs from the one before in a key ([n] each). O(n).

    >>> begins_run(np.array([5, 5, 6]), np.array([1, 2, 2])).tolist()
    [True, True, True]
    """
    begins = np.ones(len(keys[0]), dtype=np.bool_)
    begins[1:] = keys[0][1:] != keys[0][:-1]
    for key in keys[1:]:
        begins[1:] |= key[1:] != key[:-1]
    return begins


def borders_of(offsets: Int64Array, lengths: NDArray[np.integer]) -> Lists:
    """Sum up the lengths of each row, with a leading 0 (int32), such as `cu_seqlens`.

    Args:
        offsets: int64[p+1]: row k has the lengths `offsets[k]` to `offsets[k + 1] - 1`.

    >>> borders_of(np.array([0, 2, 3]), np.array([5, 1, 4])).values.tolist()
    [0, 5, 6, 0, 4]
    """
    sizes, ends = np.diff(offsets), offsets_of(lengths)
    values = np.zeros(len(lengths) + len(sizes), dtype=np.int32)
    values[np.arange(len(lengths)) + owners(sizes) + 1] = ends[1:] - np.repeat(ends[offsets[:-1]], sizes)
    return Lists(offsets + np.arange(len(offsets)), values)
