"""Reads samples from the parts of a token store, memory-mapped as they are needed.

Price: opening a part takes about a millisecond; then a piece of a sample costs a few us and a copy of its tokens.
"""

from __future__ import annotations

import itertools
import os
from bisect import bisect_right
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packer_cli.errors import FormatError, fault_of
from packer_cli.format.arrays import Columns, columns_of
from packer_cli.format.entries import PartInfo
from packer_cli.format.loss_spans import STARTS, STOPS, WEIGHTS, Int64Array
from packer_cli.format.ragged import owners

PARTS_KEPT = 1024
"""Most parts that are open at a time; each takes some KiB, and addresses."""


class Spans(NamedTuple):
    """Loss spans of pieces."""

    starts: NDArray[Any]
    """integers [s], in the piece, or before `clipped` in its sample"""
    stops: NDArray[Any]
    """integers [s]"""
    piece: Int64Array
    """int64[s]: the piece of each span"""
    weights: NDArray[np.float32] | None
    """float32[s]; None: there are none"""

    def clipped(self, start: NDArray[Any], length: NDArray[Any]) -> Spans:
        """Cut spans of samples to spans of pieces, without the first token of each.

        Args:
            start, length: [m]: where pieces begin in their samples, and their tokens.
        """
        starts = np.maximum(self.starts - start[self.piece], 1)
        stops = np.minimum(self.stops - start[self.piece], length[self.piece])
        is_inside = starts < stops
        weights = None if self.weights is None else self.weights[is_inside]
        return Spans(starts[is_inside], stops[is_inside], self.piece[is_inside], weights)


class TokenParts:
    """The parts of a token store, of which it checks no more than it needs to: rows have checksums.

    Not safe for several threads at once. A forked process opens its own files.
    """

    def __init__(
        self, open_part: Callable[[PartInfo], pa.Buffer], parts: Sequence[PartInfo], *, is_weighted: bool = False
    ) -> None:
        """Keep the parts, and open nothing yet.

        Args:
            open_part: the bytes of a part, mapped. May raise OSError and FormatError.
            is_weighted: whether loss tokens of the store have weights, perhaps not those of every part.
        """
        self._is_weighted = is_weighted
        self._first = np.cumsum([0, *(part.num_samples for part in parts)], dtype=np.int64)
        self._open = lru_cache(PARTS_KEPT)(partial(_open, open_part, parts))

    def gather(self, sample: Int64Array, start: NDArray[np.int32], length: NDArray[np.int32]) -> Columns:
        """Gather the tokens and loss spans of a row of pieces of samples.

        Raises:
            FormatError: a part is missing or damaged, or a sample is shorter than its piece.
        """
        if len(sample) and not 0 <= sample.min() <= sample.max() < self._first[-1]:
            raise FormatError("it names samples that the token store does not have")
        try:
            return self._gather(sample, start, length)
        except (IndexError, ValueError) as error:
            raise FormatError(f"its samples cannot be gathered from the token store ({error})") from None

    def _gather(self, sample: Int64Array, start: NDArray[np.int32], length: NDArray[np.int32]) -> Columns:
        part = np.searchsorted(self._first, sample, side="right") - 1
        row = sample - self._first[part]
        ids, starts, stops, weights = [], [], [], []
        pieces = zip(part.tolist(), row.tolist(), start.tolist(), length.tolist(), strict=True)
        for number, local, begin, size in pieces:
            batch, at = self._find(number, local)
            tokens = batch["input_ids"].row(at)
            if not 0 <= begin <= begin + size <= len(tokens):
                raise FormatError(f"sample {local} of token part {number} is shorter than planned")
            ids.append(tokens[begin : begin + size])
            starts.append(batch[STARTS].row(at))
            stops.append(batch[STOPS].row(at))
            if self._is_weighted:
                weights.append(batch[WEIGHTS].row(at) if WEIGHTS in batch else np.ones(len(starts[-1]), np.float32))
        of_piece = owners(np.array([len(each) for each in starts], dtype=np.int64))
        of_spans = np.concatenate(weights) if weights else None
        of_samples = Spans(np.concatenate(starts), np.concatenate(stops), of_piece, of_spans)
        spans = of_samples.clipped(start, length)
        place = (np.cumsum(length) - length).astype(np.int32)[spans.piece]
        found: Columns = {"input_ids": np.concatenate(ids), STARTS: spans.starts + place, STOPS: spans.stops + place}
        return found if spans.weights is None else found | {WEIGHTS: spans.weights}

    def _find(self, number: int, row: int) -> tuple[Columns, int]:
        """Find the record batch of a row of a part, and the row in it."""
        first, batches = self._open(number, os.getpid())
        batch = bisect_right(first, row) - 1
        return batches[batch], row - first[batch]


def _open(
    open_part: Callable[[PartInfo], pa.Buffer], parts: Sequence[PartInfo], number: int, process: int
) -> tuple[list[int], list[Columns]]:
    """Open the record batches of a part; return the first row of each, then their end, and the batches. `process`
    keeps processes apart."""
    try:
        reader = pa.ipc.open_file(open_part(parts[number]))
        batches = [columns_of(reader.get_batch(i)) for i in range(reader.num_record_batches)]
    except (OSError, KeyError, ValueError, pa.ArrowException) as error:
        raise FormatError(f"token part {number} {fault_of(error)}") from None
    first = [0, *itertools.accumulate(len(batch["line"]) for batch in batches)]
    wanted = parts[number].num_samples
    if first[-1] != wanted:
        raise FormatError(f"token part {number} has {first[-1]} samples, not {wanted}")
    return first, batches
