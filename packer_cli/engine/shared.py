"""A file that several parts share: each writes a range of it, and it gets its name when all have.

On a file system, the parts write in place, to a file in the work folder that has its size from the start. In remote
storage, where nothing can be written in place, each writes an object to the work folder; these are joined by a process
that has room for the whole file in `$TMPDIR`.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from packer_cli.errors import RunError
from packer_cli.files import HashingFile, temporary_file
from packer_cli.remote.path import RemotePath, is_remote

_BLOCK = 8 * 2**20


def make_room(final: Path, work: Path, num_bytes: int) -> None:
    """Create a shared file of this size in the work folder, keeping what an earlier run wrote to it."""
    if is_remote(final):
        return
    with suppress(FileNotFoundError):
        os.replace(final, work)
    try:
        with work.open("ab") as file:
            file.truncate(num_bytes)
    except OSError as error:
        error.filename = str(final)  # What it does not say.
        raise


@contextmanager
def write_range(work: Path, offset: int) -> Iterator[HashingFile]:
    """Write the range from `offset` on of the shared file `work`; no other part may write there.

    Synced when the block ends.
    """
    if is_remote(work):
        with temporary_file(_piece(work, offset)) as (_, hashing):
            yield hashing
        return
    try:
        with work.open("r+b") as file:
            file.seek(offset)
            hashing = HashingFile(file)
            yield hashing
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        error.filename = error.filename or str(work)  # A failed write does not name its file.
        raise


def find_range(final: Path, work: Path, offset: int) -> tuple[Path, int]:
    """The file with the range from `offset` on, and where it begins there: the shared file, or the range's object."""
    if not is_remote(final):
        return (final if final.exists() else work), offset
    piece = _piece(work, offset)
    return (piece, 0) if piece.exists() else (final, offset)


def finish_file(final: Path, work: Path, ranges: Sequence[tuple[int, int]]) -> None:
    """Give a shared file its name.

    Args:
        ranges: all of it, in order: where each begins, and its bytes.
    """
    if not isinstance(final, RemotePath):
        os.replace(work, final)
        return
    sources = [find_range(final, work, begin) for begin, _ in ranges]
    if all(source == final for source, _ in sources):
        return  # An earlier run has joined all that is there.
    with tempfile.TemporaryFile() as whole:
        for (source, offset), (_, left) in zip(sources, ranges, strict=True):
            with source.open("rb") as file:
                file.seek(offset)
                while left:
                    data = file.read(min(left, _BLOCK))
                    if not data:
                        raise RunError(f"{str(source)!r} has changed meanwhile; run again")
                    whole.write(data)
                    left -= len(data)
        whole.flush()
        final.upload(whole)


def _piece(work: Path, offset: int) -> Path:
    """The object of the range from `offset` on."""
    return work.with_name(f"{work.name}.{offset}")
