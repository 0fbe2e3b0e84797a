"""datatrove's tokenized files: ids (uint16 or uint32) in `NAME.ds`, the end of each document in `NAME.ds.index`.

`NAME.ds.loss`, if there is one, has a byte for each token: whether it carries a loss. The width of ids follows from
the size of the file and the last end. A slice is a range of documents. `NAME.ds.metadata` is not read.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import numpy as np

from packer_cli.corpus.blocks import is_file, unreadable
from packer_cli.corpus.readers.base import FileReader, RawBatch, ReadRules
from packer_cli.corpus.readers.numbers import NumberFile, cut_documents, read_documents
from packer_cli.corpus.types import CorpusFile, CorpusSlice

LOSS = ".loss"


def index_path(path: str) -> str:
    """Return the `.ds.index` of a `.ds`."""
    return path + ".index"


def _loss_path(path: str) -> str | None:
    return path + LOSS if is_file(path + LOSS) else None


def _parts(path: str) -> list[str]:
    """List the ids, their index, and the mask."""
    loss = _loss_path(path)
    return [path, index_path(path), *([] if loss is None else [loss])]


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


def cut(file: CorpusFile, slice_bytes: int | None) -> list[CorpusSlice]:
    """Cut ranges of documents of about `slice_bytes`."""
    path, loss = file.path, _loss_path(file.path)
    with NumberFile(index_path(path), "<i8") as index:
        if index.num_bytes % 8:
            raise unreadable(index.path, f"an index has 8 bytes a document, this file has {index.num_bytes:,}")
        ends = index.read(0, len(index))
    starts = np.append(0, ends)[:-1]
    if (ends < starts).any():
        number = int((ends < starts).argmax())
        raise unreadable(index.path, f"document {number + 1} ends before it begins")
    num_tokens = int(ends[-1]) if len(ends) else 0
    width = _width(path, file.num_bytes, num_tokens)
    if loss is not None:
        with NumberFile(loss, "u1") as masks:
            if len(masks) != num_tokens:
                raise unreadable(loss, f"it has {len(masks):,} bytes for {num_tokens:,} tokens")
    return cut_documents(file, ends * width, slice_bytes, _parts(path))


def read(slice_: CorpusSlice, rules: ReadRules, fields: frozenset[str]) -> Iterator[RawBatch]:
    """Read the documents of the slice."""
    path, loss = slice_.file.path, _loss_path(slice_.file.path)
    with ExitStack() as stack:
        index = stack.enter_context(NumberFile(index_path(path), "<i8"))
        before = index.read(slice_.start - 1, slice_.start) if slice_.start else np.zeros(1, np.int64)
        borders = np.append(before, index.read(slice_.start, slice_.stop))
        num_tokens = int(index.read(len(index) - 1, len(index))[0])
        width = _width(path, slice_.file.num_bytes, num_tokens)
        files = {"input_ids": stack.enter_context(NumberFile(path, f"<u{width}"))}
        if loss is not None:
            files["loss_mask"] = stack.enter_context(NumberFile(loss, "u1"))
        yield from read_documents(files, borders, np.arange(slice_.start, slice_.stop) + 1, rules)


READER = FileReader(cut, read, _parts)
