"""`rejected.jsonl`: the records that were left out or cut, with reasons, of those that parts of the store have."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, repeat
from pathlib import Path
from typing import NamedTuple

from packer_cli.errors import FormatError
from packer_cli.files import atomic_file, holds
from packer_cli.format.checksums import find_damage
from packer_cli.format.constants import REJECTED_NAME
from packer_cli.tokens.index import EXCLUDED, INDEX_NAME, StoreIndex, remedy


class RejectedRecord(NamedTuple):
    """A record that was left out, or cut."""

    file: str
    """The file, as the user named it."""
    line: int
    reason: str


def write_rejected(folder: Path, entries: Callable[[], Iterable[RejectedRecord]]) -> bool:
    """Write `rejected.jsonl` unless it already holds these lines; return whether it was written.

    Args:
        entries: makes the lines; called twice.

    Raises:
        FormatError: the token store is damaged.
    """
    path = folder / REJECTED_NAME
    if holds(path, map(_line, entries())):
        return False
    with atomic_file(path) as file:
        for line in map(_line, entries()):
            file.write(line)
    return True


def store_rejects(index: StoreIndex, store: Path) -> Iterator[RejectedRecord]:
    """Yield the records that were rejected when a store was made.

    Price: reading each file of them twice, as it is checked first.

    Raises:
        FormatError: the store is damaged.
    """
    for part in index.parts:
        yield from (RejectedRecord(part.files[k].path, line, EXCLUDED) for k, line in part.excluded)
        if part.rejects_xxh3 is None:
            continue
        path = store / part.rejects_name
        why = find_damage(path, None, part.rejects_xxh3, INDEX_NAME)
        if why is not None:
            raise FormatError(f"{str(path)!r} is damaged ({why}); {remedy(path)}")
        names = chain.from_iterable(repeat(file.path, file.num_rejected - file.num_excluded) for file in part.files)
        with path.open(encoding="utf-8", newline="\n") as lines:
            for name, line in zip(names, lines, strict=True):
                yield RejectedRecord(file=name, **json.loads(line))


_encode = json.JSONEncoder(ensure_ascii=False).encode  # Created once: there may be millions of lines.


def _line(entry: RejectedRecord) -> bytes:
    return (_encode(entry._asdict()) + "\n").encode("utf-8", "backslashreplace")
