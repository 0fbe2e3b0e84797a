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

_VIEW = np.dtype([("size", "<i4"), ("inline", "u1", 12)])
_INLINE = 12
"""Most bytes of a span that Arrow keeps in the view itself; longer ones are (prefix, number of buffer, offset)."""
_REACH = 2**30
"""The latest begin of a span in its buffer, since offsets are int32."""


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
    """Copy the bytes of m spans, in order, by Arrow: uint8[sum of sizes], writable. O(bytes), without the GIL.

    The spans become an Arrow array of binary views, which Arrow copies into one run of memory.

    Args:
        number: int64[m], index of each span's buffer.
        begin, size: int64[m], bytes; a size is at least 1. The caller guarantees that the spans lie in their buffers.
    """
    num_bytes = int(size.sum())
    assert size.max(initial=0) < 2**31
    windows, window = np.unique(begin // _REACH * len(buffers) + number, return_inverse=True)
    begin = begin % _REACH
    reached = [buffers[w % len(buffers)].slice(w // len(buffers) * _REACH) for w in windows.tolist()]
    views = np.zeros(len(size), dtype=_VIEW)
    views["size"] = size
    views["inline"].view("<i4")[:, 1] = window
    views["inline"].view("<i4")[:, 2] = begin
    short = np.flatnonzero(size <= _INLINE)
    # Their bytes stand in their views, followed by zeros. Price: a few us for each buffer.
    short = short[np.argsort(window[short], kind="stable")]
    place = np.arange(_INLINE)
    for rows in np.split(short, np.flatnonzero(np.diff(window[short])) + 1) if len(short) else ():
        source = np.frombuffer(reached[window[rows[0]]], dtype=np.uint8)
        within = place < views["size"][rows, None]
        views["inline"][rows] = source[np.minimum(begin[rows, None] + place, len(source) - 1)] * within
    array = pa.Array.from_buffers(pa.binary_view(), len(views), [None, pa.py_buffer(views), *reached])
    return np.frombuffer(array.cast(pa.large_binary()).buffers()[2], dtype=np.uint8, count=num_bytes)
