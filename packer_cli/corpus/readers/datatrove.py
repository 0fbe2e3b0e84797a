"""datatrove's tokenized files: ids (uint16 or uint32) in `NAME.ds`, the end of each document in `NAME.ds.index`.

`NAME.ds.loss`, if there is one, has a byte for each token: whether it carries a loss. The width of ids follows from
the size of the file and the last end. A slice is a range of documents. `NAME.ds.metadata` is not read.
"""

from __future__ import annotations

import numpy as np

from packer_cli.corpus.blocks import is_file, unreadable
from packer_cli.corpus.readers.numbers import Documents, NumberFile, indexed_reader
from packer_cli.corpus.types import CorpusFile

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


def _read_index(file: CorpusFile, start: int, stop: int | None) -> Documents:
    path, loss = file.path, _loss_path(file.path)
    with NumberFile(index_path(path), "<i8") as index:
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


READER = indexed_reader(_read_index, _parts)
