"""Megatron's IndexedDataset: token ids in `NAME.bin`, and where each sequence lies in `NAME.idx`.

A sample is a sequence, as for Megatron's GPT data set; the index of documents says which sequences belong together and
is not needed. The format has no masks; where `loss_mask.bin` and `.idx` lie beside `tokens.bin`, as `hbpack export`
writes them, they are its mask. A slice is a range of sequences.

The index (little-endian): "MMIDIDX" and two zero bytes, uint64 version 1, uint8 code of the dtype, uint64 number of
sequences, uint64 number of documents + 1; then the lengths (int32) and byte offsets (int64) of the sequences, the
first sequence of each document, then their end (int64), and, for multimodal data, the mode of each sequence (int8).
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from contextlib import ExitStack
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from packer_cli.corpus.blocks import is_file, unreadable
from packer_cli.corpus.readers.base import FileReader, RawBatch, ReadRules
from packer_cli.corpus.readers.numbers import NumberFile, cut_documents, read_documents
from packer_cli.corpus.types import CorpusFile, CorpusSlice, Gap

IDS, MASK = "tokens.bin", "loss_mask.bin"
MAGIC = b"MMIDIDX\x00\x00"
HEADER = struct.Struct("<9sQBQQ")
INTEGERS = {1: "u1", 2: "i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}
"""The dtype of ids by its code; 6 and 7 are floats."""


def index_path(path: str) -> str:
    """Return the `.idx` of a `.bin`."""
    return os.path.splitext(path)[0] + ".idx"


def mask_path(path: str) -> str | None:
    """Return the `.bin` of the loss mask that belongs to a `.bin` of ids, if there is one."""
    folder, name = os.path.split(path)
    mask = os.path.join(folder, MASK)
    return mask if name == IDS and all(map(is_file, (mask, index_path(mask)))) else None


def is_mask(path: str) -> bool:
    """Whether a `.bin` is the mask of another one."""
    folder, name = os.path.split(path)
    return name == MASK and mask_path(os.path.join(folder, IDS)) is not None and is_file(os.path.join(folder, IDS))


class _Index(NamedTuple):
    """Parts of an index that a slice needs."""

    dtype: str
    lengths: NDArray[np.int32]
    firsts: NDArray[np.int64]
    """The places of first ids in the `.bin`."""
    rests: NDArray[np.int64]
    """Bytes between these places and where the index puts them: none unless it is damaged."""


def _read_index(path: str, start: int = 0, stop: int | None = None) -> _Index:
    """Read sequences `start` to `stop - 1` of an `.idx`; raises InputError when it is damaged."""
    with NumberFile(path, "u1") as data:
        if len(data) < HEADER.size:
            raise unreadable(path, f"an index has at least {HEADER.size} bytes, this file has {len(data)}")
        magic, version, code, num_sequences, num_borders = HEADER.unpack(data.read(0, HEADER.size).data)
        if magic != MAGIC or version != 1:
            raise unreadable(path, "not an index of Megatron's IndexedDataset, version 1")
        if code not in INTEGERS:
            what = f"its ids have the dtype of code {code}, which is not an integer"
            if os.path.basename(path) == index_path(MASK):
                what = f"it has numbers of dtype {code}, such as loss weights; a mask has integers, 0 and 1"
            raise unreadable(path, what)
        size = HEADER.size + 12 * num_sequences + 8 * num_borders
        if len(data) not in (size, size + num_sequences):
            what = f"an index of {num_sequences:,} sequences has {size:,} bytes, this file has {len(data):,}"
            raise unreadable(path, what)
        stop, places = num_sequences if stop is None else stop, HEADER.size + 4 * num_sequences
        lengths = data.read(HEADER.size + 4 * start, HEADER.size + 4 * stop).view("<i4")
        starts = data.read(places + 8 * start, places + 8 * stop).view("<i8")
    return _Index(INTEGERS[code], lengths, *np.divmod(starts, np.dtype(INTEGERS[code]).itemsize))


def _parts(path: str) -> list[str]:
    """List the ids and the mask, each with its index."""
    mask = mask_path(path)
    return [path, index_path(path), *([] if mask is None else [mask, index_path(mask)])]


def cut(file: CorpusFile, slice_bytes: int | None) -> list[CorpusSlice]:
    """Cut ranges of sequences of about `slice_bytes`."""
    index = _read_index(index_path(file.path))
    mask = mask_path(file.path)
    if mask is not None:
        other = _read_index(index_path(mask))
        if not (np.array_equal(index.lengths, other.lengths) and np.array_equal(index.firsts, other.firsts)):
            raise unreadable(mask, f"its sequences are not those of {file.path}")
    ends = np.cumsum(index.lengths, dtype=np.int64) * np.dtype(index.dtype).itemsize
    return cut_documents(file, ends, slice_bytes, _parts(file.path))


def read(slice_: CorpusSlice, rules: ReadRules, fields: frozenset[str]) -> Iterator[RawBatch]:
    """Read the sequences of the slice; those that the index puts outside the `.bin` are lost."""
    path = slice_.file.path
    index = _read_index(index_path(path), slice_.start, slice_.stop)
    mask = mask_path(path)
    with ExitStack() as stack:
        files = {"input_ids": stack.enter_context(NumberFile(path, index.dtype))}
        if mask is not None:
            files["loss_mask"] = stack.enter_context(NumberFile(mask, _read_index(index_path(mask), 0, 0).dtype))
        lines = np.arange(slice_.start, slice_.stop) + 1
        first, last = index.firsts, index.firsts + index.lengths
        is_inside = (index.lengths >= 0) & (first >= 0) & (index.rests == 0) & (last <= min(map(len, files.values())))
        follows = np.zeros(len(first), np.bool_)
        follows[1:] = is_inside[1:] == is_inside[:-1]
        follows[1:] &= ~is_inside[1:] | (first[1:] == last[:-1])
        runs = np.append(np.flatnonzero(~follows), len(first))
        for start, stop in zip(runs.tolist(), runs[1:].tolist(), strict=False):
            if is_inside[start]:
                borders = np.append(first[start:stop], last[stop - 1])
                yield from read_documents(files, borders, lines[start:stop], rules)
            else:
                numbers = f"{lines[start]} to {lines[stop - 1]}"
                lost = f"the index puts sequences {numbers} outside {os.path.basename(path)}; they are lost"
                yield RawBatch(rejects=[Gap(int(lines[start]), lost)])


READER = FileReader(cut, read, _parts)
