"""Writing files so that a killed run leaves none half-written under its final name."""

from __future__ import annotations

import errno
import io
import json
import os
import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, TypeVar

import xxhash

from packer_cli.errors import FormatError, InputError, OutputError
from packer_cli.remote.path import RemotePath, is_remote

T = TypeVar("T")
_TEMPORARY = ".tmp"


class HashingFile(io.RawIOBase):
    """A binary file that hashes (xxh3-128) and counts what is written to it; the file below is left open."""

    def __init__(self, file: IO[bytes]) -> None:
        """Take an open file."""
        self._file = file
        self._hash = xxhash.xxh3_128()
        self.num_bytes = 0

    def write(self, data: Any) -> int:
        """Write bytes, or anything with a buffer."""
        self._hash.update(data)
        size = memoryview(data).nbytes
        self.num_bytes += size
        self._file.write(data)
        return size

    def hexdigest(self) -> str:
        """Hash of everything so far."""
        return self._hash.hexdigest()

    def writable(self) -> bool:
        """Return True: the file can always be written to."""
        return True


@contextmanager
def atomic_file(path: Path, *, sync: bool = True) -> Iterator[HashingFile]:
    """Write to a temporary name beside `path`; sync and rename when the block ends well, remove it when not.

    Without `sync` a loss of power may leave the file empty: for what can be told to be damaged and made again.

    A remote file has no other name: it is written to a nameless file of this machine, and uploaded when the block ends
    well.
    """
    if isinstance(path, RemotePath):
        with tempfile.TemporaryFile() as local:
            yield HashingFile(local)
            local.flush()
            path.upload(local)
        return
    with _replacing(path, sync=sync) as temporary, temporary.open("wb") as file:
        yield HashingFile(file)


@contextmanager
def _replacing(path: Path, *, sync: bool = True) -> Iterator[Path]:
    """Give a temporary name beside `path` to write to; sync and rename it when the block ends well, or remove it.

    An error names the file that was to be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = temporary_name(path)
    try:
        yield temporary
        if sync:
            _sync(temporary, os.O_RDWR)
        os.replace(temporary, path)
        if sync:
            _sync(path.parent, os.O_RDONLY)
    except BaseException as error:
        with suppress(OSError):  # Where the disk lets us.
            temporary.unlink()
        if isinstance(error, OSError) and error.filename in (None, str(temporary)):
            error.filename, error.filename2 = str(path), None
        raise


def temporary_name(path: Path) -> Path:
    """Return a name beside `path` that nobody else uses: other machines write here, too."""
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}{_TEMPORARY}")


def link_file(path: Path, to: Path) -> None:
    """Give a file a second name, which keeps it when the first is replaced; a copy, where there are no such names."""
    if isinstance(path, RemotePath) and isinstance(to, RemotePath):
        path.copy(to)
        return
    with _replacing(to) as temporary:
        try:
            os.link(path, temporary)
        except OSError:
            shutil.copyfile(path, temporary)


def no_link(path: str, flags: int) -> int:
    """Open, for `open`, a file that may be there already: in a set from somebody else it may lead elsewhere.

    Raises:
        OutputError: it is a symbolic link.
    """
    try:
        return os.open(path, flags | os.O_NOFOLLOW, 0o666)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        to = os.readlink(path)
        raise OutputError(f"{path!r} is a link to {to!r}, and hbpack writes through none; remove the link") from None


def write_text(path: Path, text: str, *, sync: bool = True) -> None:
    """Write a text file atomically."""
    with atomic_file(path, sync=sync) as file:
        file.write(text.encode())


def write_json(path: Path, value: Any) -> None:
    """Write indented JSON atomically."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def holds(path: Path, blocks: Iterable[bytes]) -> bool:
    """Whether a file consists of these bytes, one block after another. Price: reading it once, up to a difference."""
    try:
        with path.open("rb") as file:
            return all(file.read(len(block)) == block for block in blocks) and not file.read(1)
    except FileNotFoundError:
        return False


def intact_or_none(read: Callable[..., T], *arguments: Any) -> T | None:
    """Return what a function reads; None if it is missing or damaged."""
    try:
        return read(*arguments)
    except (InputError, FormatError):
        return None


def is_temporary(name: str) -> bool:
    """Whether a file of this name is what a killed run may leave."""
    return name.startswith(".") and name.endswith(_TEMPORARY)


def remove_temporaries(folder: Path) -> None:
    """Remove what a killed run left under temporary names; a remote folder has no such files."""
    if is_remote(folder):
        return
    for path in folder.rglob(f".*{_TEMPORARY}"):
        path.unlink(missing_ok=True)


def remove_folder(folder: Path) -> None:
    """Remove a folder with everything in it, if it exists."""
    if isinstance(folder, RemotePath):
        folder.remove_all()
    else:
        shutil.rmtree(folder, ignore_errors=True)


def fingerprint(*values: Any) -> str:
    """Return the xxh3-128 (hex) of JSON values; the same for the same values, on any machine."""
    text = json.dumps(values, sort_keys=True, separators=(",", ":"), ensure_ascii=True, default=str)
    return xxhash.xxh3_128_hexdigest(text.encode())


def _sync(path: Path, flags: int) -> None:
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
