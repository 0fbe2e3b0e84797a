"""Whether a file is still the one that was listed when the run began.

A run that read one version of a file here and another there would lose records and repeat others. So every file gets
a *stamp* when it is listed: its size, times and inode, or the version that object storage reports. The stamp is
compared after the file was cut, and after each slice was read. The kernel changes `ctime` with every write and rename,
so an equal stamp vouches for all reads before it. If the stamp differs, as it also does after `chmod` and on a node
with a copy of its own, the contents are compared. Slices have checksums as well (`require_span`).

Reads of S3 name the version in the stamp, and fail once the object is another one: nothing need be compared.

Price: a call of the system per file or slice; a request for an object, but none on S3.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import TypeVar

import xxhash

from packer_cli.corpus.blocks import SMALL_BYTES, changed, checksums, listed_version, open_file, readable
from packer_cli.corpus.readers.registry import READERS, TOKEN_FORMATS
from packer_cli.corpus.types import CorpusFile
from packer_cli.errors import RunError
from packer_cli.remote.file import RemoteFile
from packer_cli.remote.path import RemotePath, version_of
from packer_cli.remote.system import ObjectInfo, is_url

T = TypeVar("T")
_HAVE_PARTS = (*TOKEN_FORMATS, "datasets")
"""Formats whose readers open files by path."""
SETTLED_SECONDS = 60
_OF_CONTENT = ("s3://", "s3a://", "gs://", "gcs://", "az://", "abfs://", "abfss://")
"""Storage that gives an object another version with each write."""
AT_ONCE = 32
"""Small objects that a process requests at a time."""


def _stamp(path: str) -> str:
    with readable(path, OSError):
        if is_url(path):
            return stamp_of_object(RemotePath(path).info())
        # Network file systems ask for the times when a file is opened.
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb", buffering=0) as opened:
            return stamp_of_stat(os.fstat(opened.fileno()))


def stamp_of_stat(found: os.stat_result) -> str:
    """Return the stamp of a local file."""
    return f"{found.st_size}:{found.st_mtime_ns}:{found.st_ctime_ns}:{found.st_ino}"


def stamp_of_object(info: ObjectInfo) -> str:
    """Return the stamp of an object, of what its storage says of it."""
    return f"{int(info['size'] or 0)}:{version_of(info)}"


def is_settled(path: str, stamp: str, since: float) -> bool:
    """Whether the file holds what was read of it after `since` (s) for as long as it has this stamp.

    A program that holds it mapped changes it without a trace until the kernel has written the page back, which takes
    half a minute; a file that nobody has written to for longer tells of the next change. File systems that keep whole
    seconds, as images do, do not tell, nor do servers whose versions may be times.
    """
    each = stamp.split(",")
    if is_url(path):
        return path.startswith(_OF_CONTENT) and bool(stamp) and not any(found.endswith(":None") for found in each)
    changes = [int(found.split(":")[2]) for found in each if found]
    is_fine = all(change % 10**9 for change in changes)
    return is_fine and bool(changes) and max(changes) < (since - SETTLED_SECONDS) * 1e9


def size_of(found: str) -> int:
    """Return the bytes of the (first) file of a stamp."""
    return int(found.partition(":")[0])


def stamp_of(file: CorpusFile) -> str:
    """Return the stamp that a file has now: of all files that belong together.

    Raises:
        InputError: one is missing.
        RemoteError: the storage does not answer.
    """
    return ",".join(map(_stamp, READERS[file.format].parts(file.path)))


def is_pinned(file: CorpusFile) -> bool:
    """Whether every read of the file is of the version in its stamp."""
    return file.format not in _HAVE_PARTS and listed_version(file) is not None


def is_small(file: CorpusFile) -> bool:
    """Whether this is an object that is best read whole, by one request, at the same time as others."""
    return is_url(file.path) and file.num_bytes <= SMALL_BYTES and file.format not in _HAVE_PARTS


def require_unchanged(file: CorpusFile) -> None:
    """Raise RunError unless the file is the one that was listed, or has its content."""
    if not file.stamp:
        return
    found = stamp_of(file)
    if found != file.stamp and not (file.fingerprint and content_of(file._replace(stamp=found)) == file.fingerprint):
        raise changed(file.path)


def restamped(file: CorpusFile) -> CorpusFile:
    """Stamp a listed file that nobody has read yet as it is on this machine.

    Raises:
        RunError: its size has changed since, or when it was written. Its inode may differ from machine to machine, and
            what storage says of a version when it lists a folder may not be what it says of the object.
    """
    if not file.stamp:
        return file
    found = stamp_of(file)
    num_fields = 1 if is_url(file.path) else 2
    if _fields(found, num_fields) != _fields(file.stamp, num_fields):
        raise changed(file.path)
    return file._replace(stamp=found)


def map_many(function: Callable[[CorpusFile], T], files: Sequence[CorpusFile]) -> list[T]:
    """Return what a function that reads files gives for each; many small objects are read at a time."""
    small = [*filter(is_small, files)]
    with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="hbpack-read") as pool:
        done = dict(zip(small, pool.map(function, small), strict=True))
    return [done[file] if file in done else function(file) for file in files]


def hold(file: CorpusFile) -> CorpusFile:
    """Hold the file's bytes in memory, with their fingerprint: a small one need not be opened again to be read.

    Raises:
        InputError: it cannot be read.
        RunError: it has changed since it was listed, or read.
    """
    try:
        held = _hold(file if is_url(file.path) else restamped(file))
    except RunError:
        if not is_pinned(file):
            raise
        held = _hold(file._replace(stamp=""))  # Some storages list another ETag than they give.
    if file.fingerprint and held.fingerprint != file.fingerprint:
        raise changed(file.path)
    return held


def _hold(file: CorpusFile) -> CorpusFile:
    with readable(file.path, OSError), open_file(file) as raw:
        content = raw.readall()
    if isinstance(raw, RemoteFile):
        file = file._replace(stamp=stamp_of_object(raw.info))
    if len(content) != file.num_bytes:
        raise changed(file.path)
    if not (isinstance(raw, RemoteFile) and raw.is_pinned):
        require_unchanged(file)
    return file._replace(fingerprint=xxhash.xxh3_128_hexdigest(content), content=content)


def _fields(found: str, number: int) -> list[list[str]]:
    return [each.split(":")[:number] for each in found.split(",")]


@lru_cache(maxsize=4096)
def content_of(file: CorpusFile) -> str:
    """Return the fingerprint that a file has now. Price: reading it, once for each stamp."""
    return checksums([file._replace(path=path) for path in READERS[file.format].parts(file.path)])[0]
