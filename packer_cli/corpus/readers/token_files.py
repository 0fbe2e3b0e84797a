"""Files of token ids, as trainers write them: Megatron's and datatrove's with an index, and flat ones without.

They are read, not memory-mapped: a file that is cut short meanwhile then ends in an error, not in a dead process.

Megatron's IndexedDataset has token ids in `NAME.bin`, and where each sequence lies in `NAME.idx`.

A sample is a sequence, as for Megatron's GPT data set; the index of documents says which sequences belong together and
is not needed. The format has no masks; where `loss_mask.bin` and `.idx` lie beside `tokens.bin`, as `hbpack export`
writes them, they are its mask. A slice is a range of sequences.

The index (little-endian): "MMIDIDX" and two zero bytes, uint64 version 1, uint8 code of the dtype, uint64 number of
sequences, uint64 number of documents + 1; then the lengths (int32) and byte offsets (int64) of the sequences, the
first sequence of each document, then their end (int64), and, for multimodal data, the mode of each sequence (int8).

datatrove's tokenized files are ids (uint16 or uint32) in `NAME.ds`, the end of each document in `NAME.ds.index`.

`NAME.ds.loss`, if there is one, has a byte for each token: whether it carries a loss. The width of ids follows from
the size of the file and the last end. A slice is a range of documents. `NAME.ds.metadata` is not read.

Flat files have no header or index, as dolma writes them for OLMo (`.npy`): documents end at the tokenizer's EOS.

An id has the 2 bytes that dolma and OLMo-core choose for a vocabulary of up to 65,536, else 4; a file whose every
second pair of bytes is zero has 4 either way. The tokens after the last EOS are a document, too. A document's line is
the number of its first token, from 1; it belongs to the slice (a range of bytes) in which that lies.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from io import BufferedReader
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from packer_cli.corpus.blocks import changed, is_file, open_file, readable, unreadable
from packer_cli.corpus.readers.base import FileReader, RawBatch, ReadRules, default_slice_bytes
from packer_cli.corpus.types import CorpusFile, CorpusSlice, Gap, Reject, TokenRows
from packer_cli.errors import TokenizerError
from packer_cli.format.ragged import Lists

BATCH_TOKENS = 1 << 20
"""Tokens a batch, unless a document holds more: enough for the arrays' fixed costs, few enough for the cache."""


class NumberFile(AbstractContextManager["NumberFile"]):
    """A file of numbers.

    Args:
        dtype: of a number, little-endian.

    Raises InputError when the file cannot be opened.
    """

    def __init__(self, path: str, dtype: Any) -> None:
        self.path = path
        self.dtype = np.dtype(dtype)
        with readable(path, OSError):
            self._file = BufferedReader(open_file(CorpusFile(0, path, "flat")))
            self.num_bytes = self._file.seek(0, os.SEEK_END)

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def __len__(self) -> int:
        return int(self.num_bytes // self.dtype.itemsize)

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Read numbers `start` to `stop - 1`. Raises RunError when the file is shorter now, InputError on a fault."""
        size = (stop - start) * self.dtype.itemsize
        with readable(self.path, OSError):
            self._file.seek(start * self.dtype.itemsize)
            data = self._file.read(size)
        if len(data) < size:
            raise changed(self.path)
        return np.frombuffer(data, self.dtype).astype(self.dtype.newbyteorder("="), copy=False)


class Documents(NamedTuple):
    """Documents of files of numbers, as an index beside them has them."""

    columns: dict[str, tuple[str, str]]
    """`input_ids` and perhaps `loss_mask`: the file, and the dtype of its numbers."""
    firsts: NDArray[np.int64]
    """int64[n]: the places of first numbers; below 0: nowhere."""
    lengths: NDArray[Any]
    """integers [n]"""


ReadIndex = Callable[[CorpusFile, int, int | None], Documents]
"""(file, start, stop) -> documents `start` to `stop - 1`, all by default. Raises InputError when it is damaged."""


def _cut_indexed(read_index: ReadIndex, file: CorpusFile, slice_bytes: int | None) -> list[CorpusSlice]:
    """Cut ranges of documents of about `slice_bytes`, in a format of token ids with an index."""
    documents = read_index(file, 0, None)
    ends = np.cumsum(documents.lengths, dtype=np.int64) * np.dtype(documents.columns["input_ids"][1]).itemsize
    limit = slice_bytes or default_slice_bytes(file.num_bytes)
    cuts = np.searchsorted(ends, np.arange(limit, file.num_bytes, limit)) + 1
    borders = np.unique(np.concatenate([[0], np.minimum(cuts, len(ends)), [len(ends)]])).tolist()
    places = np.minimum(np.append(0, ends)[borders], file.num_bytes).tolist()
    return [
        CorpusSlice(file=file, start=start, stop=stop, first_line=start + 1, span=span)
        for (start, stop), span in zip(pairwise(borders), pairwise(places), strict=True)
    ]


def _read_indexed(
    read_index: ReadIndex, slice_: CorpusSlice, rules: ReadRules, fields: frozenset[str]
) -> Iterator[RawBatch]:
    """Read the documents of the slice; those that the index puts outside the file are lost."""
    columns, first, lengths = read_index(slice_.file, slice_.start, slice_.stop)
    with ExitStack() as stack:
        files = {name: stack.enter_context(NumberFile(*place)) for name, place in columns.items()}
        lines, last = np.arange(slice_.start, slice_.stop) + 1, first + lengths
        is_inside = (lengths >= 0) & (first >= 0) & (last <= min(map(len, files.values())))
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
                lost = f"the index puts sequences {numbers} outside the file; they are lost"
                yield RawBatch(rejects=[Gap(int(lines[start]), lost)])


def read_documents(
    files: dict[str, NumberFile], borders: NDArray[np.int64], lines: NDArray[np.int64], rules: ReadRules
) -> Iterator[RawBatch]:
    """Read documents that follow each other, about `BATCH_TOKENS` at a time.

    Args:
        files: by column, `input_ids` and perhaps `loss_mask`.
        borders: int64[n+1], rising: where documents begin in the files, and the end.
        lines: int64[n]: the documents' lines.
    """
    lengths = np.diff(borders)
    too_long = np.flatnonzero(lengths > rules.max_record_bytes // files["input_ids"].dtype.itemsize)
    place = 0
    while place < len(lengths):
        after = np.searchsorted(too_long, place)
        next_long = int(too_long[after]) if after < len(too_long) else len(lengths)
        if next_long == place:
            yield RawBatch(rejects=[Reject(int(lines[place]), rules.too_long())])
            place += 1
            continue
        most = int(np.searchsorted(borders, borders[place] + BATCH_TOKENS, side="right")) - 1
        stop = min(max(most, place + 1), next_long)
        start, end = int(borders[place]), int(borders[stop])
        offsets = borders[place : stop + 1] - start
        columns = {name: Lists(offsets, file.read(start, end)) for name, file in files.items()}
        yield RawBatch(tokens=TokenRows(lines[place:stop], columns))
        place = stop


IDS, MASK = "tokens.bin", "loss_mask.bin"
MAGIC = b"MMIDIDX\x00\x00"
HEADER = struct.Struct("<9sQBQQ")
INTEGERS = {1: "u1", 2: "i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}
"""The dtype of ids by its code; 6 and 7 are floats."""


def idx_path(path: str) -> str:
    """Return the `.idx` of a `.bin`."""
    return os.path.splitext(path)[0] + ".idx"


def mask_path(path: str) -> str | None:
    """Return the `.bin` of the loss mask that belongs to a `.bin` of ids, if there is one."""
    folder, name = os.path.split(path)
    mask = os.path.join(folder, MASK)
    return mask if name == IDS and all(map(is_file, (mask, idx_path(mask)))) else None


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
            if os.path.basename(path) == idx_path(MASK):
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


def _megatron_parts(path: str) -> list[str]:
    """List the ids and the mask, each with its index."""
    mask = mask_path(path)
    return [path, idx_path(path), *([] if mask is None else [mask, idx_path(mask)])]


def _read_megatron(file: CorpusFile, start: int, stop: int | None) -> Documents:
    path, mask = file.path, mask_path(file.path)
    dtype, lengths, starts = _read_idx(idx_path(path), start, stop)
    firsts, rests = np.divmod(starts, np.dtype(dtype).itemsize)
    columns = {"input_ids": (path, dtype)}
    if mask is not None:
        of_mask, others, places = _read_idx(idx_path(mask), start, stop)
        if not (np.array_equal(lengths, others) and np.array_equal(firsts, places // np.dtype(of_mask).itemsize)):
            raise unreadable(mask, f"its sequences are not those of {path}")
        columns["loss_mask"] = (mask, of_mask)
    return Documents(columns, np.where(rests, -1, firsts), lengths)


MEGATRON = FileReader(partial(_cut_indexed, _read_megatron), partial(_read_indexed, _read_megatron), _megatron_parts)


LOSS, INDEX = ".loss", ".index"
"""The ends that follow the name of a `.ds`."""


def _loss_path(path: str) -> str | None:
    return path + LOSS if is_file(path + LOSS) else None


def _datatrove_parts(path: str) -> list[str]:
    """List the ids, their index, and the mask."""
    loss = _loss_path(path)
    return [path, path + INDEX, *([] if loss is None else [loss])]


def _width(path: str, num_bytes: int, num_tokens: int) -> int:
    """Return the bytes an id; raises InputError when the file and its index do not fit together."""
    for width in (2, 4):
        if num_bytes == width * num_tokens:
            return width
    raise unreadable(
        path,
        f"its index ends at token {num_tokens:,}, so it must have 2 or 4 bytes for each, but it has {num_bytes:,} "
        "bytes",
    )


def _read_datatrove(file: CorpusFile, start: int, stop: int | None) -> Documents:
    path, loss = file.path, _loss_path(file.path)
    with NumberFile(path + INDEX, "<i8") as index:
        if index.num_bytes % 8:
            raise unreadable(index.path, f"an index has 8 bytes a document, this file has {index.num_bytes:,}")
        ends = index.read(max(start - 1, 0), len(index) if stop is None else stop)
        num_tokens = int(index.read(len(index) - 1, len(index))[0]) if len(index) else 0
    borders = ends if start else np.append(0, ends)
    lengths = np.diff(borders)
    if (lengths < 0).any():
        number = start + int((lengths < 0).argmax())
        raise unreadable(index.path, f"document {number + 1} ends before it begins")
    columns = {"input_ids": (path, f"<u{_width(path, file.num_bytes, num_tokens)}")}
    if loss is not None:
        columns["loss_mask"] = (loss, "u1")
        with NumberFile(loss, "u1") as masks:
            if len(masks) != num_tokens:
                raise unreadable(loss, f"it has {len(masks):,} bytes for {num_tokens:,} tokens")
    return Documents(columns, borders[:-1], lengths)


DATATROVE = FileReader(
    partial(_cut_indexed, _read_datatrove), partial(_read_indexed, _read_datatrove), _datatrove_parts
)


NUMPY_MAGIC = b"\x93NUMPY"
LOOK_TOKENS = 1 << 16
"""Tokens that show whether a file has wider ids than the vocabulary needs."""


def _cut_flat(file: CorpusFile, slice_bytes: int | None) -> list[CorpusSlice]:
    """Cut equal ranges of bytes."""
    with NumberFile(file.path, "u1") as data:
        if data.read(0, min(len(NUMPY_MAGIC), len(data))).tobytes() == NUMPY_MAGIC:
            raise unreadable(
                file.path,
                "it was saved by numpy.save, and hbpack reads .npy files of token ids without a header, as dolma and "
                "array.tofile write them",
            )
    step = max(4, (slice_bytes or default_slice_bytes(file.num_bytes)) // 4 * 4)
    num_bytes = file.num_bytes
    return [  # The last document of a slice ends in the next one.
        CorpusSlice(file, start, min(start + step, num_bytes), span=(start, min(start + 2 * step, num_bytes)))
        for start in range(0, num_bytes, step)
    ]


def _read_flat(slice_: CorpusSlice, rules: ReadRules, fields: frozenset[str]) -> Iterator[RawBatch]:
    """Read the documents that begin in the slice. Raises TokenizerError when the tokenizer has no EOS."""
    path, eos = slice_.file.path, rules.eos_id
    if eos is None:
        raise TokenizerError(
            f"{path}: its documents end at EOS, and the tokenizer has none; name a token of its vocabulary with "
            "--eos-token TOKEN"
        )
    width = _width_of_flat(slice_.file, rules.vocab_size)
    with NumberFile(path, f"<u{width}") as ids:
        stop = min(slice_.stop // width, len(ids))
        begin = slice_.start // width
        if begin and int(ids.read(begin - 1, begin)[0]) != eos:
            begin = _document_end(ids, begin, eos)
        while begin < stop:
            end = min(begin + BATCH_TOKENS, len(ids))
            ends = np.flatnonzero(ids.read(begin, end) == eos) + begin + 1
            if not len(ends):
                ends = np.array([_document_end(ids, end, eos)])
            elif end == len(ids) and ends[-1] < end:
                ends = np.append(ends, end)
            borders = np.append(begin, ends)
            borders = borders[: np.searchsorted(borders[:-1], stop) + 1]
            yield from read_documents({"input_ids": ids}, borders, borders[:-1] + 1, rules)
            begin = int(borders[-1])
        left = slice_.file.num_bytes % width
        if left and slice_.stop == slice_.file.num_bytes:
            lost = f"the file ends within an id of {width} bytes; the last {left} of its bytes are lost"
            yield RawBatch(rejects=[Gap(len(ids) + 1, lost)], lost=left)


def _document_end(ids: NumberFile, begin: int, eos: int) -> int:
    """Return the place past the first EOS from `begin` on, or the end of the file."""
    while begin < len(ids):
        block = ids.read(begin, min(begin + BATCH_TOKENS, len(ids)))
        found = np.flatnonzero(block == eos)
        if len(found):
            return begin + int(found[0]) + 1
        begin += len(block)
    return begin


def _width_of_flat(file: CorpusFile, vocab_size: int) -> int:
    """Return the bytes an id."""
    if vocab_size > 2**16:
        return 4
    with NumberFile(file.path, "<u2") as halves:
        head = halves.read(0, min(2 * LOOK_TOKENS, len(halves) // 2 * 2))
    return 4 if len(head) > 2 and file.num_bytes % 4 == 0 and not head[1::2].any() else 2


FLAT = FileReader(_cut_flat, _read_flat)
