"""Token ids without header or index, as dolma writes them for OLMo (`.npy`): documents end at the tokenizer's EOS.

An id has the 2 bytes that dolma and OLMo-core choose for a vocabulary of up to 65,536, else 4; a file whose every
second pair of bytes is zero has 4 either way. The tokens after the last EOS are a document, too. A document's line is
the number of its first token, from 1; it belongs to the slice (a range of bytes) in which that lies.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from packer_cli.corpus.blocks import unreadable, with_spans
from packer_cli.corpus.readers.base import FileReader, RawBatch, ReadRules, default_slice_bytes
from packer_cli.corpus.readers.numbers import BATCH_TOKENS, NumberFile, read_documents
from packer_cli.corpus.types import CorpusFile, CorpusSlice, Gap
from packer_cli.errors import TokenizerError

NUMPY_MAGIC = b"\x93NUMPY"
LOOK_TOKENS = 1 << 16
"""Tokens that show whether a file has wider ids than the vocabulary needs."""


def cut(file: CorpusFile, slice_bytes: int | None) -> list[CorpusSlice]:
    """Cut equal ranges of bytes."""
    with NumberFile(file.path, "u1") as data:
        if data.read(0, min(len(NUMPY_MAGIC), len(data))).tobytes() == NUMPY_MAGIC:
            raise unreadable(
                file.path,
                "it was saved by numpy.save, and hbpack reads .npy files of token ids without a header, as dolma and "
                "array.tofile write them",
            )
    step = max(4, (slice_bytes or default_slice_bytes(file.num_bytes)) // 4 * 4)
    slices = [
        CorpusSlice(file=file, start=start, stop=min(start + step, file.num_bytes), first_line=1)
        for start in range(0, file.num_bytes, step)
    ]
    # The last document of a slice ends in the next one.
    spans = [(each.start, min(each.stop + step, file.num_bytes)) for each in slices]
    return with_spans(slices, spans, [file.path])


def read(slice_: CorpusSlice, rules: ReadRules, fields: frozenset[str]) -> Iterator[RawBatch]:
    """Read the documents that begin in the slice. Raises TokenizerError when the tokenizer has no EOS."""
    path, eos = slice_.file.path, rules.eos_id
    if eos is None:
        raise TokenizerError(
            f"{path}: its documents end at EOS, and the tokenizer has none; name a token of its vocabulary with "
            "--eos-token TOKEN"
        )
    width = _width(slice_.file, rules.vocab_size)
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
            yield RawBatch(rejects=[Gap(len(ids) + 1, lost)])


def _document_end(ids: NumberFile, begin: int, eos: int) -> int:
    """Return the place past the first EOS from `begin` on, or the end of the file."""
    while begin < len(ids):
        block = ids.read(begin, min(begin + BATCH_TOKENS, len(ids)))
        found = np.flatnonzero(block == eos)
        if len(found):
            return begin + int(found[0]) + 1
        begin += len(block)
    return begin


def _width(file: CorpusFile, vocab_size: int) -> int:
    """Return the bytes an id."""
    if vocab_size > 2**16:
        return 4
    with NumberFile(file.path, "<u2") as halves:
        head = halves.read(0, min(2 * LOOK_TOKENS, len(halves) // 2 * 2))
    return 4 if len(head) > 2 and file.num_bytes % 4 == 0 and not head[1::2].any() else 2


READER = FileReader(cut, read)
