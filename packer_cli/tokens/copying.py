"""Copies of memory runs and single values out of many arrays, without joining the arrays."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packer_cli.format.arrays import Columns
from packer_cli.format.ragged import Int64Array, Lists, expand, offsets_of, owners


class Among:
    """Places of values in many arrays, to take the values out without joining the arrays."""

    def __init__(self, number: Int64Array) -> None:
        """Sort the values by array. O(m) for up to 65,536 arrays, which numpy sorts by radix; O(m log m) for more.

        Args:
            number: int64[m]: the array that each value is taken out of.
        """
        is_narrow = number.max(initial=0) < 2**16
        order = np.argsort(number.astype(np.uint16) if is_narrow else number, kind="stable")
        ordered = number[order]
        begins = np.flatnonzero(np.diff(ordered, prepend=-1))
        borders = itertools.pairwise([*begins.tolist(), len(order)])
        self._of_array = [
            (of, order[begin:end]) for of, (begin, end) in zip(ordered[begins].tolist(), borders, strict=True)
        ]

    def take(self, arrays: Sequence[NDArray[Any]], place: Int64Array) -> NDArray[Any]:
        """Take values ([m], of the arrays' type) at places (int64[m]) of arrays. Price: a few us for each array."""
        values = np.empty(len(place), dtype=arrays[0].dtype if arrays else np.int32)
        for number, own in self._of_array:
            values[own] = arrays[number][place[own]]
        return values


Arrays = Callable[[str, str], list[NDArray[Any]]]
"""Gives the `offsets` or `values` of a column of all record batches."""


def take_lists(arrays: Arrays, batch: Int64Array, row: Int64Array, *names: str) -> Columns:
    """Take lists that have the same sizes, of rows of record batches (int64[m])."""
    of_rows, offsets = Among(batch), arrays(names[0], "offsets")
    first, stop = (of_rows.take(offsets, row + k).astype(np.int64) for k in (0, 1))
    sizes = stop - first
    among, place, borders = Among(batch[owners(sizes)]), expand(first, sizes), offsets_of(sizes)
    return {name: Lists(borders, among.take(arrays(name, "values"), place)) for name in names}


def copy_spans(
    buffers: Sequence[pa.Buffer], number: Int64Array, begin: Int64Array, size: Int64Array
) -> NDArray[np.uint8]:
    """Copy the bytes of m spans, in order: uint8[sum of sizes], writable. Price: 0.5 us a span, and a copy.

    Args:
        number: int64[m], index of each span's buffer.
        begin, size: int64[m], bytes. The caller guarantees that the spans lie in their buffers.
    """
    views = [memoryview(each) for each in buffers]
    spans = zip(number.tolist(), begin.tolist(), (begin + size).tolist(), strict=True)
    return np.frombuffer(bytearray().join([views[of][start:stop] for of, start, stop in spans]), dtype=np.uint8)
