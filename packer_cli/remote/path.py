"""A file or folder behind a URL, with the methods of `pathlib.Path` that hbpack uses.

Commands take a `Path` or a `RemotePath` for a folder alike. What differs is in the methods here and in
`packer_cli.files`. universal-pathlib has such paths too, but its `exists` and `is_file` take a request that failed for
an object that is missing, and it has no place for retries.
"""

from __future__ import annotations

import glob
import io
import os
import posixpath
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path, PurePosixPath
from types import SimpleNamespace
from typing import Any, Self, TypeVar, cast

from packer_cli.errors import InputError, RemoteError, RunError
from packer_cli.remote.file import RemoteFile
from packer_cli.remote.system import (
    ObjectInfo,
    StorageOptions,
    ask,
    get_version,
    is_url,
    open_system,
    whole,
)


def _join(path: str, name: str) -> str:
    parts = path.split("/")
    for part in name.split("/"):
        if part == ".." and len(parts) > 1:
            parts.pop()
        elif part not in ("", ".", ".."):
            parts.append(part)
    return "/".join(parts)


T = TypeVar("T")

_RANGES_AT_ONCE = 128
"""Most ranges that are requested at a time."""


def is_remote(path: object) -> bool:
    """Whether this is a `RemotePath`."""
    return isinstance(path, RemotePath)


def version_of(info: ObjectInfo) -> str | None:
    """Return a value that changes whenever the object does, such as its ETag; None where the storage has none."""
    names = ("ETag", "etag", "md5Hash", "content_md5", "generation", "blob_id", "created")
    found = (info.get(name) for name in names)
    return next((str(value) for value in found if value), None)


@dataclass(frozen=True, order=True)
class RemotePath:
    """The path of an object, or of the folder that objects' names share. Can be pickled.

    Every request is retried. A folder exists as long as it has objects; it is neither made nor removed.
    """

    url: str
    options: StorageOptions = field(default_factory=dict, compare=False, repr=False)
    """Options of the file system."""

    def __post_init__(self) -> None:
        scheme, _, path = self.url.partition("://")
        object.__setattr__(self, "url", f"{scheme}://{path.rstrip('/') or path}")

    def __str__(self) -> str:
        return self.url

    def __truediv__(self, name: str | os.PathLike[str]) -> Self:
        """Return a path below; `..` climbs."""
        scheme, _, path = self.url.partition("://")
        return type(self)(f"{scheme}://{_join(path, os.fspath(name))}", self.options)

    @property
    def name(self) -> str:
        """The last part."""
        return posixpath.basename(self.url)

    @property
    def suffix(self) -> str:
        """The last part's suffix."""
        return PurePosixPath(self.name).suffix

    @property
    def parent(self) -> Self:
        """The folder."""
        return self / ".."

    @property
    def parents(self) -> list[Self]:
        """The folders, up to the bucket."""
        found = [self.parent]
        while found[-1] != found[-1].parent:
            found.append(found[-1].parent)
        return found

    def with_name(self, name: str) -> Self:
        """Return the same folder with another last part."""
        return self.parent / name

    def relative_to(self, folder: RemotePath) -> PurePosixPath:
        """Return the path below a folder."""
        return PurePosixPath(self.url).relative_to(PurePosixPath(folder.url))

    def resolve(self) -> Self:
        """Return the path itself: there are no links."""
        return self

    def info(self) -> ObjectInfo:
        """Return the storage's facts of an object, or of a folder; raise FileNotFoundError where there is neither."""
        found: ObjectInfo = self._request(lambda system, path: system.info(path))
        return found

    def exists(self) -> bool:
        """Whether there is an object of this name, or one below."""
        return self.info_or_none() is not None

    def is_file(self) -> bool:
        """Whether there is an object of this name."""
        return (self.info_or_none() or {}).get("type") == "file"

    def is_dir(self) -> bool:
        """Whether there is an object below this name."""
        return (self.info_or_none() or {}).get("type") == "directory"

    def stat(self) -> Any:
        """Return the object's size, as `st_size`."""
        return SimpleNamespace(st_size=int(self.info()["size"]))

    def open(
        self, mode: str = "r", buffering: int = -1, encoding: str | None = None, newline: str | None = None
    ) -> Any:
        """Open an object to be read forward; each range of it is retried by itself.

        Raises:
            FileNotFoundError: the object is missing.
        """
        file = self.open_ranges(goes_forward=True)
        if mode == "rb":
            return file if buffering == 0 else io.BufferedReader(file, io.DEFAULT_BUFFER_SIZE)
        assert mode == "r", mode
        return io.TextIOWrapper(io.BufferedReader(file), encoding=encoding, newline=newline)

    def open_ranges(self, *, goes_forward: bool = False, listed: ObjectInfo | None = None) -> RemoteFile:
        """Open an object to be read in any order, as pyarrow does; see `RemoteFile`.

        On S3, every range is of the version that was opened: reading raises RunError once the object was replaced.

        Args:
            listed: size and ETag of the version to open, if they are known: where reads can name it (`can_pin`),
                opening sends no request.
        """
        info = listed if listed is not None and self.can_pin(listed) else self.info()
        is_pinned = self.can_pin(info)
        fetch = partial(self._read_version, info["ETag"]) if is_pinned else self.read_range
        return RemoteFile(fetch, info, goes_forward=goes_forward, is_pinned=is_pinned)

    def can_pin(self, info: ObjectInfo) -> bool:
        """Whether reads can name this version of the object."""
        return self.url.startswith(("s3://", "s3a://")) and bool(info.get("ETag"))

    def _read_version(self, etag: str, start: int, stop: int) -> bytes:
        from fsspec.asyn import sync

        def read(system: Any, path: str) -> bytes:
            data: bytes | None = sync(system.loop, get_version, system, path, etag, start, stop)
            if data is None:
                raise RunError(f"{self}: the object was replaced while it was read; run again")
            return whole(data, start, stop)

        return self._request(read)

    def read_range(self, start: int, stop: int) -> bytes:
        """Read bytes `start .. stop - 1`; of none, no request is sent."""
        if start == stop:
            return b""
        return self._request(
            lambda system, path: whole(bytes(system.cat_file(path, start=start, end=stop)), start, stop)
        )

    def read_ranges(self, ranges: Sequence[tuple[str, int, int]]) -> list[bytes]:
        """Read bytes `start .. stop - 1` of objects below: (name, start, stop); many at a time, each retried."""
        with ThreadPoolExecutor(_RANGES_AT_ONCE) as pool:
            return [*pool.map(lambda each: (self / each[0]).read_range(*each[1:]), ranges)]

    def read_bytes(self) -> bytes:
        """Read all bytes."""
        return self._request(lambda system, path: bytes(system.cat_file(path)))

    def iterdir(self) -> Iterator[RemotePath]:
        """List the paths directly below."""
        try:
            found = self._request(lambda system, path: system.ls(path, detail=False))
        except FileNotFoundError:
            found = []
        own = self._path
        return (self / posixpath.basename(path.rstrip("/")) for path in found if path.rstrip("/") != own)

    def glob(self, pattern: str) -> Iterator[RemotePath]:
        """List the paths below that match, sorted."""
        found = self._request(lambda system, path: sorted(system.glob(f"{glob.escape(path)}/{pattern}")))
        own = self._path
        return (self / posixpath.relpath(path, own) for path in found)

    def find(self, pattern: str | None = None) -> dict[str, int]:
        """Find every object below: its path from here -> its size; see `find_infos`."""
        return {path: int(info["size"] or 0) for path, info in self.find_infos(pattern).items()}

    def find_infos(self, pattern: str | None = None) -> dict[str, ObjectInfo]:
        """Find every object below: its path from here -> its `info`, folder by folder, each sorted by name.

        Args:
            pattern: a glob of the objects, or of folders whose objects are meant; sorted by the path that matches.
        """

        def below(system: Any, path: str) -> dict[str, Any]:
            found = system.find(path, detail=True)
            return {name: found[name] for name in sorted(found, key=lambda name: name.split("/"))}

        def matching(system: Any, path: str) -> dict[str, Any]:
            found: dict[str, Any] = {}
            matches = system.glob(f"{glob.escape(path)}/{pattern}", detail=True)
            for name in sorted(matches):
                if matches[name]["type"] != "directory":
                    found[name] = matches[name]
                elif "**" not in str(pattern):  # It lists what is inside by itself.
                    found |= below(system, name)
            return found

        found = self._request(below if pattern is None else matching)
        own = self._path
        return {posixpath.relpath(path, own): info for path, info in found.items()}

    def mkdir(self, parents: bool = False, exist_ok: bool = False) -> None:
        """Do nothing."""

    def rmdir(self) -> None:
        """Do nothing."""

    def unlink(self, missing_ok: bool = False) -> None:
        """Remove the object; an object that is gone already is no error."""

        def remove(system: Any, path: str) -> None:
            try:
                system.rm_file(path)
            except (FileNotFoundError, KeyError):  # The answer to an earlier try may have been lost.
                return

        self._request(remove, "removed")

    def remove_all(self) -> None:
        """Remove every object below."""
        for path in self.find():
            (self / path).unlink()

    def upload(self, file: Any) -> None:
        """Write the object from a file of this machine. It appears whole, when all of it has arrived."""

        def put(system: Any, path: str) -> None:
            file.seek(0)  # On some systems the name below shares the file's position.
            system.put_file(f"/dev/fd/{file.fileno()}", path)

        self._request(put, "written")

    def write_bytes(self, data: bytes) -> None:
        """Write a small object."""
        self._request(lambda system, path: system.pipe_file(path, data), "written")

    def copy(self, to: RemotePath) -> None:
        """Copy the object to another one of the same storage, which does so itself."""
        self._request(lambda system, path: system.cp_file(path, to._path), "copied")

    def write_new(self, data: bytes) -> bool:
        """Write a small object, unless there is one; return False if so."""
        return self.write_over(data, None)

    def write_over(self, data: bytes, seen: ObjectInfo | None) -> bool:
        """Write a small object, unless there is another one than the storage said; return False if so.

        Storage that cannot compare, as some servers of S3, leaves a moment in which two writers may find nothing.

        Args:
            seen: what it said of the object; None: there was none.
        """
        condition: dict[str, Any] = {"mode": "create"}
        if seen is not None:
            condition = {"IfMatch": seen["ETag"]} if self.can_pin(seen) else {}

        def put(system: Any, path: str) -> bool:
            try:
                system.pipe_file(path, data, **condition)
            except FileExistsError:
                return False
            except (OSError, NotImplementedError) as error:
                why = f"{error} {error.__cause__}"
                if "PreconditionFailed" in why:
                    return False
                if not isinstance(error, NotImplementedError) and "NotImplemented" not in why:
                    raise
                if seen is None and system.exists(path):
                    return False
                system.pipe_file(path, data)
            return True

        # Where an answer was lost, the next try finds the object that the first one wrote.
        if self._request(put, "written"):
            return True
        try:
            return self.read_bytes() == data
        except FileNotFoundError:  # Removed meanwhile.
            return False

    def info_or_none(self) -> ObjectInfo | None:
        """Return `info`; None where there is neither an object nor a folder."""
        try:
            return self.info()
        except FileNotFoundError:
            return None

    @property
    def _path(self) -> str:
        return open_system(self.url, self.options)[1]

    def _request(self, request: Callable[[Any, str], T], what: str = "read") -> T:
        return ask(self.url, self.options, request, what)


def as_path(name: str | os.PathLike[str]) -> Path:
    """Return the path of a file or folder that the user named: a `Path`, or for a URL a `RemotePath`, used alike.

    Raises:
        InputError: there is no such kind of storage, or what reads it is not installed.
    """
    text = os.fspath(name)
    if text.startswith("file://"):
        return Path(text.removeprefix("file://"))
    if not is_url(text):
        return Path(text)
    try:
        open_system(text, {})
    except (ImportError, RemoteError) as error:
        raise InputError(str(error)) from None
    return cast("Path", RemotePath(text))


def path_from(folder: Path, text: str) -> Path:
    """Return the path that a file in a folder gives as `relative_path` made it."""
    if is_url(text):
        return as_path(text)
    if is_remote(folder):
        return Path(text) if text.startswith("/") else folder / text
    return Path(os.path.normpath(folder / text))


def relative_path(path: Path, folder: Path) -> str:
    """Return the text with which files in `folder` name another path: relative if possible, so that both can move."""
    if not is_remote(path) and not is_remote(folder):
        return os.path.relpath(path, folder)
    (scheme, _, ours), (other, _, theirs) = (str(each).partition("://") for each in (path, folder))
    if scheme == other and ours.split("/")[0] == theirs.split("/")[0]:
        return posixpath.relpath(f"/{ours}", f"/{theirs}")
    return str(path) if is_remote(path) else str(path.absolute())


def paths_below(folder: Path) -> set[Path]:
    """Return a folder that exists and everything in it; only the objects of a remote one."""
    if isinstance(folder, RemotePath):
        return {folder / name for name in folder.find()}
    return {path for path in (folder, *folder.rglob("*")) if path.exists()}
