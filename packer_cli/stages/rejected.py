"""`rejected.jsonl` lists every record that was left out, with the current names of the files."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from itertools import chain, repeat
from pathlib import Path
from typing import NamedTuple

from packer_cli.files import atomic_file, holds
from packer_cli.format.constants import REJECTED_NAME
from packer_cli.tokens.index import StoreIndex


class RejectedRecord(NamedTuple):
    """A record that was left out, or cut."""

    file: str
    """As the user named it."""
    line: int
    reason: str


def write_rejected(folder: Path, index: StoreIndex, store: Path, overflow: Iterable[RejectedRecord]) -> bool:
    """Write the file unless it already holds these lines. Returns whether it was written. Reads the rejects twice.

    Args:
        overflow: samples that the plan dropped or truncated; read twice.

    Raises:
        FormatError: the token store is damaged.
    """
    path = folder / REJECTED_NAME
    if holds(path, _lines(index, store, overflow)):
        return False
    with atomic_file(path) as file:
        for line in _lines(index, store, overflow):
            file.write(line)
    return True


def first_rejected(index: StoreIndex, store: Path) -> str | None:
    """The first rejected record with its reason, for people; None if no record was rejected.

    Raises:
        FormatError: the token store is damaged.
    """
    entry = next(_rejects(index, store), None)
    return None if entry is None else f"{entry.file}:{entry.line}: {entry.reason}"


def _lines(index: StoreIndex, store: Path, overflow: Iterable[RejectedRecord]) -> Iterator[bytes]:
    return map(_line, chain(_rejects(index, store), overflow))


def _rejects(index: StoreIndex, store: Path) -> Iterator[RejectedRecord]:
    from packer_cli.tokens.rejects import read_rejects, rejects_name

    for part in index.parts:
        if part.rejects_xxh3 is not None:
            names = chain.from_iterable(repeat(file.path, file.num_rejected) for file in part.files)
            rejects = read_rejects(store / rejects_name(part.path), part.rejects_xxh3)
            for name, reject in zip(names, rejects, strict=True):
                yield RejectedRecord(file=name, line=reject.line, reason=reject.reason)


_encode = json.JSONEncoder(ensure_ascii=False).encode  # Created once: there may be millions of lines.


def _line(entry: RejectedRecord) -> bytes:
    return (_encode(entry._asdict()) + "\n").encode("utf-8", "backslashreplace")
