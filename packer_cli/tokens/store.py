"""The token store: Arrow parts, one row a sample, and `tokens.json`, their index.

A sample's id is its row number over all parts in order. Reading is memory-mapped: opening touches only lengths, and
gathering a pack copies just its tokens.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numba import njit
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, ValidationError

from packer_cli.arrays import to_arrow, to_lists, to_numpy
from packer_cli.errors import FormatError, InputError
from packer_cli.files import HashingFile

if TYPE_CHECKING:
    from packer_cli.tokens.types import EncodedBatch

INDEX_NAME = "tokens.json"
STORE_FORMAT = "hbpack-tokens"
STORE_VERSION = 1
_TOKENS_PER_BATCH = 2**22

PART_SCHEMA = pa.schema(
    [
        pa.field("input_ids", pa.list_(pa.field("item", pa.int32(), nullable=False)), nullable=False),
        pa.field("loss_mask", pa.list_(pa.field("item", pa.int8(), nullable=False)), nullable=False),
        pa.field("num_loss_tokens", pa.int32(), nullable=False),
        pa.field("line", pa.int64(), nullable=False),
    ]
)


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class PartInfo(_Model):
    """One part of the store."""

    path: str
    """File name in the store's folder."""
    fingerprint: str
    """Of the slice of input, the tokenizer and the options that made it."""
    source: int
    file: str
    """The input file, as the user named it."""
    num_samples: int
    num_tokens: int
    num_loss_tokens: int
    num_rejected: int
    num_with_special: int
    """Records whose own contents hold the text of a special token."""
    num_bytes: int
    xxh3: str
    """xxh3-128 of the part's file."""
    backend: str
    """What encoded it."""
    warnings: tuple[str, ...] = ()


class SourceInfo(_Model):
    """One input."""

    name: str
    weight: float


class StoreIndex(_Model):
    """`tokens.json`."""

    format: str = STORE_FORMAT
    format_version: int = STORE_VERSION
    fingerprint: str
    """Of all parts."""
    tokenizer: dict[str, Any]
    """Fingerprints, vocabulary size and special ids."""
    options: dict[str, Any]
    """What shaped the samples."""
    library_versions: dict[str, str]
    sources: tuple[SourceInfo, ...]
    parts: tuple[PartInfo, ...]


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
        input_ids = np.concatenate([batch.input_ids for batch in self._waiting])
        loss_mask = np.concatenate([batch.loss_mask for batch in self._waiting])
        lines = np.concatenate([batch.lines for batch in self._waiting])
        lengths = np.concatenate([np.diff(batch.offsets) for batch in self._waiting])
        self._waiting, self._num_waiting = [], 0
        ends = np.concatenate([[0], np.cumsum(lengths)])
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
        """Write what waits, and the footer."""
        self._flush()
        self._writer.close()


class TokenStore:
    """A token store, opened for planning and gathering."""

    def __init__(self, folder: Path, index: StoreIndex) -> None:
        self.folder = folder
        self.index = index
        self._batches: list[_Batch] = []
        for part in index.parts:
            self._batches += [_Batch(batch, part) for batch in open_part(folder, part)]
        counts = [len(batch.offsets) - 1 for batch in self._batches]
        self._first_sample = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)

    @classmethod
    def open(cls, folder: Path) -> TokenStore:
        """Open the store in a folder.

        Raises:
            InputError: no finished store is there.
            FormatError: it is damaged, or of another version.
        """
        return cls(folder, read_index(folder))

    def __len__(self) -> int:
        return int(self._first_sample[-1])

    def lengths(self) -> NDArray[np.int32]:
        """int32[n]: tokens of each sample."""
        return _join([np.diff(batch.offsets) for batch in self._batches], np.int32)

    def num_loss_tokens(self) -> NDArray[np.int32]:
        """int32[n]: loss tokens of each sample, its first token not counted."""
        return _join([batch.num_loss_tokens for batch in self._batches], np.int32)

    def sources_of(self, sample: NDArray[np.int64]) -> NDArray[np.int32]:
        """int32[m]: source of each of the samples."""
        by_batch = np.array([batch.part.source for batch in self._batches], dtype=np.int32)
        return by_batch[np.searchsorted(self._first_sample, sample, side="right") - 1]

    def sources(self) -> NDArray[np.int32]:
        """int32[n]: source of every sample."""
        by_batch = np.array([batch.part.source for batch in self._batches], dtype=np.int32)
        return np.repeat(by_batch, np.diff(self._first_sample))

    def locate(self, sample: int) -> tuple[str, int]:
        """Input file and line of a sample."""
        number = int(np.searchsorted(self._first_sample, sample, side="right")) - 1
        batch = self._batches[number]
        return batch.part.file, int(batch.lines[sample - self._first_sample[number]])

    def loss_tokens_of(
        self, sample: NDArray[np.int64], start: NDArray[np.int64], length: NDArray[np.int32]
    ) -> NDArray[np.int32]:
        """Loss tokens (int32[m]) of pieces of samples, the first token of each not counted. Reads their masks."""
        counts = np.zeros(len(sample), dtype=np.int32)
        for batch, members, local in self._by_batch(sample):
            begin = batch.offsets[local].astype(np.int64) + start[members]
            counts[members] = _count_spans(batch.loss_mask, begin, length[members])
        return counts

    def gather(
        self,
        sample: NDArray[np.int64],
        start: NDArray[np.int64],
        length: NDArray[np.int32],
        input_ids: NDArray[np.int32],
        loss_mask: NDArray[np.int8],
    ) -> None:
        """Copy pieces one after another into `input_ids` and `loss_mask`, clearing the mask at each first token.

        The order of copying is that of the store, so that each part is read once and forwards. O(tokens).
        """
        target = np.cumsum(length, dtype=np.int64) - length
        for batch, members, local in self._by_batch(sample):
            begin = batch.offsets[local].astype(np.int64) + start[members]
            copy_spans(batch.input_ids, batch.loss_mask, begin, length[members], target[members], input_ids, loss_mask)

    def _by_batch(self, sample: NDArray[np.int64]) -> Iterable[tuple[_Batch, NDArray[np.int64], NDArray[np.int64]]]:
        """For each record batch that holds any: (batch, indices into `sample`, rows in the batch), rows rising."""
        order = np.argsort(sample, kind="stable")
        borders = np.searchsorted(sample[order], self._first_sample)
        for number, batch in enumerate(self._batches):
            members = order[borders[number] : borders[number + 1]]
            if len(members):
                yield batch, members, sample[members] - self._first_sample[number]


def open_part(folder: Path, part: PartInfo) -> list[pa.RecordBatch]:
    """The record batches of a part, memory-mapped; reads and checks lengths, not tokens.

    Raises:
        FormatError: it is missing or damaged.
    """
    path = folder / part.path
    try:
        if path.stat().st_size != part.num_bytes:
            raise pa.ArrowInvalid(f"it has {path.stat().st_size} bytes instead of {part.num_bytes}")
        reader = pa.ipc.open_file(pa.memory_map(str(path)))
        if reader.schema != PART_SCHEMA:
            raise pa.ArrowInvalid("it has other columns")
        batches = [reader.get_batch(i) for i in range(reader.num_record_batches)]
        for batch in batches:
            batch.validate(full=True)
            if not batch.column("input_ids").offsets.equals(batch.column("loss_mask").offsets):
                raise pa.ArrowInvalid("ids and masks have different lengths")
        if sum(len(batch) for batch in batches) != part.num_samples:
            raise pa.ArrowInvalid(f"it does not hold its {part.num_samples} samples")
    except (OSError, pa.ArrowException) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise FormatError(
            f"token store part {str(path)!r} is damaged ({' '.join(reason.split())}); tokenize again"
        ) from None
    return batches


class _Batch:
    """Numpy views of one record batch."""

    def __init__(self, batch: pa.RecordBatch, part: PartInfo) -> None:
        self.part = part
        ids, mask = batch.column("input_ids"), batch.column("loss_mask")
        self.offsets: NDArray[np.int32] = to_numpy(ids.offsets)
        self.input_ids: NDArray[np.int32] = to_numpy(ids.values)
        self.loss_mask: NDArray[np.int8] = to_numpy(mask.values)
        self.num_loss_tokens: NDArray[np.int32] = to_numpy(batch.column("num_loss_tokens"))
        self.lines: NDArray[np.int64] = to_numpy(batch.column("line"))


def read_index(folder: Path) -> StoreIndex:
    """Read `tokens.json`; the errors are those of `TokenStore.open`."""
    path = folder / INDEX_NAME
    try:
        index = StoreIndex.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        raise InputError(f"{str(folder)!r} holds no token store (no {INDEX_NAME}); run hbpack tokenize") from None
    except (OSError, ValidationError) as error:
        raise FormatError(f"{str(path)!r} is damaged ({str(error).splitlines()[0]}); tokenize again") from None
    if index.format != STORE_FORMAT or index.format_version != STORE_VERSION:
        raise FormatError(
            f"{str(path)!r} has format {index.format} {index.format_version}; this release reads "
            f"{STORE_FORMAT} {STORE_VERSION}; tokenize again"
        )
    return index


def _join(arrays: list[NDArray[Any]], dtype: type) -> NDArray[Any]:
    return np.concatenate(arrays).astype(dtype, copy=False) if arrays else np.zeros(0, dtype=dtype)


@njit(cache=True, nogil=True)
def count_loss_tokens(loss_mask: NDArray[np.int8], offsets: NDArray[np.int64]) -> NDArray[np.int32]:
    """Loss tokens (int32[n]) of each sample; nothing predicts a first token, so it is not counted. O(t)."""
    counts = np.zeros(len(offsets) - 1, dtype=np.int32)
    for i in range(len(counts)):
        for j in range(offsets[i] + 1, offsets[i + 1]):
            counts[i] += loss_mask[j] != 0
    return counts


@njit(cache=True, nogil=True)
def _count_spans(
    loss_mask: NDArray[np.int8], begin: NDArray[np.int64], length: NDArray[np.int32]
) -> NDArray[np.int32]:
    counts = np.zeros(len(begin), dtype=np.int32)
    for i in range(len(begin)):
        for j in range(begin[i] + 1, begin[i] + length[i]):
            counts[i] += loss_mask[j] != 0
    return counts


@njit(cache=True, nogil=True)
def copy_spans(
    from_ids: NDArray[np.int32],
    from_mask: NDArray[np.int8],
    begin: NDArray[np.int64],
    length: NDArray[np.int32],
    target: NDArray[np.int64],
    input_ids: NDArray[np.int32],
    loss_mask: NDArray[np.int8],
) -> None:
    """Copy m spans of one record batch to their targets; the mask is cleared at each first token. O(tokens)."""
    for i in range(len(begin)):
        for j in range(length[i]):
            input_ids[target[i] + j] = from_ids[begin[i] + j]
            loss_mask[target[i] + j] = from_mask[begin[i] + j]
        loss_mask[target[i]] = 0
