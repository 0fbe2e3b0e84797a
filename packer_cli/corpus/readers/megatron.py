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

import numpy as np
from numpy.typing import NDArray

from packer_cli.corpus.blocks import is_file, unreadable
from packer_cli.corpus.readers.numbers import Documents, NumberFile, indexed_reader
from packer_cli.corpus.types import CorpusFile

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


def _read_idx(path: str, start: int, stop: int | None) -> tuple[str, NDArray[np.int32], NDArray[np.int64]]:
    """Read the dtype of an `.idx`, and the lengths of sequences and the bytes where they begin in the `.bin`."""
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
    return INTEGERS[code], lengths, starts


def _parts(path: str) -> list[str]:
    """List the ids and the mask, each with its index."""
    mask = mask_path(path)
    return [path, index_path(path), *([] if mask is None else [mask, index_path(mask)])]


def _read_index(file: CorpusFile, start: int, stop: int | None) -> Documents:
    path, mask = file.path, mask_path(file.path)
    dtype, lengths, starts = _read_idx(index_path(path), start, stop)
    firsts, rests = np.divmod(starts, np.dtype(dtype).itemsize)
    columns = {"input_ids": (path, dtype)}
    if mask is not None:
        of_mask, others, places = _read_idx(index_path(mask), start, stop)
        if not (np.array_equal(lengths, others) and np.array_equal(firsts, places // np.dtype(of_mask).itemsize)):
            raise unreadable(mask, f"its sequences are not those of {path}")
        columns["loss_mask"] = (mask, of_mask)
    return Documents(columns, np.where(rests, -1, firsts), lengths)


READER = indexed_reader(_read_index, _parts)
