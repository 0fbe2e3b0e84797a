"""Writes a part of the token store. No kernels here: workers that only tokenize need not load numba."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packer_cli.format.arrays import to_arrow, to_lists
from packer_cli.tokens.index import PART_SCHEMA

if TYPE_CHECKING:
    from packer_cli.files import HashingFile
    from packer_cli.tokens.types import EncodedBatch

_TOKENS_PER_BATCH = 2**22


class PartWriter:
    """Writes the batches of one part to an open file."""

    def __init__(self, file: HashingFile) -> None:
        self._writer = pa.ipc.new_file(pa.PythonFile(file, mode="w"), PART_SCHEMA)
        self._waiting: list[EncodedBatch] = []
        self._num_waiting = 0
        self.num_samples = 0
        self.num_tokens = 0
        self.num_loss_tokens = 0

    def write(self, batch: EncodedBatch) -> None:
        """Append the samples of a batch. Small batches are gathered into record batches of a few million tokens."""
        self._waiting.append(batch)
        self._num_waiting += len(batch.input_ids)
        if self._num_waiting >= _TOKENS_PER_BATCH:
            self._flush()

    def _flush(self) -> None:
        if not self._waiting:
            return
        batches, self._waiting, self._num_waiting = self._waiting, [], 0
        input_ids = _joined([batch.input_ids for batch in batches])
        lines = _joined([batch.lines for batch in batches])
        lengths = _joined([np.diff(batch.offsets) for batch in batches])
        ends = np.concatenate([[0], np.cumsum(lengths)])
        if all(batch.loss_mask is None for batch in batches):
            loss_mask = np.ones(len(input_ids), dtype=np.int8)
            num_loss_tokens = (lengths - 1).astype(np.int32)
        else:
            masks = [batch.loss_mask for batch in batches]
            loss_mask = _joined(
                [
                    np.ones(len(batch.input_ids), dtype=np.int8) if mask is None else mask
                    for mask, batch in zip(masks, batches, strict=True)
                ]
            )
            num_loss_tokens = count_loss_tokens(loss_mask, ends)
        columns = [
            to_lists(ends, input_ids),
            to_lists(ends, loss_mask),
            to_arrow(num_loss_tokens),
            to_arrow(lines),
        ]
        self._writer.write_batch(pa.record_batch(columns, schema=PART_SCHEMA))
        self.num_samples += len(lines)
        self.num_tokens += len(input_ids)
        self.num_loss_tokens += int(num_loss_tokens.sum())

    def close(self) -> None:
        """Write the remaining samples and the footer."""
        self._flush()
        self._writer.close()


def _joined(arrays: list[NDArray[Any]]) -> NDArray[Any]:
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


def count_loss_tokens(loss_mask: NDArray[np.int8], offsets: NDArray[np.int64]) -> NDArray[np.int32]:
    """Loss tokens (int32[n]) of each sample; nothing predicts a first token, so it is not counted. O(t).

    Args:
        loss_mask: int8[t], 0 or 1.
        offsets: int64[n+1]; no sample is empty.
    """
    sums: NDArray[np.int32] = np.add.reduceat(loss_mask, offsets[:-1], dtype=np.int32)
    return sums - loss_mask[offsets[:-1]].astype(np.int32)
