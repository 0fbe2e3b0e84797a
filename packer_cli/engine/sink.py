"""Files that a task writes: those of one part, and the record that vouches for them."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol, TypeVar

from packer_cli.files import HashingFile, atomic_file, remove_folder
from packer_cli.format.checksums import find_damage
from packer_cli.format.entries import FileInfo
from packer_cli.format.records import json_values, read_record
from packer_cli.remote.path import RemotePath, version_of
from packer_cli.version import __version__

PIN = "array/pin.json"
"""Object in the work folder of a job array's output: what its tasks agree on; see `packer_cli.engine.array`."""


class PartTask(Protocol):
    """A task that makes one part."""

    @property
    def name(self) -> str:
        """The part's name in its output, also the path of its marker; the same in every run."""

    @property
    def fingerprint(self) -> str:
        """Covers everything that decides the part's bytes."""


Task = TypeVar("Task", bound=PartTask)


@dataclass(frozen=True, kw_only=True)
class WrittenFile(FileInfo):
    """A file that was written, below the output folder."""

    version: str | None = None
    """Version of a remote file: what the storage said of it when it was uploaded."""

    def is_intact(self, file: Path, *, is_listed: bool = False) -> bool:
        """Whether `file` holds these bytes. Price: reading it once, unless its size is wrong.

        A remote file is not read if it still is the version that was uploaded.

        Args:
            is_listed: a listing in its place vouches for it, so no run has written to it since. That, too, is enough
                for a remote file of this size; whoever reads it compares the checksum.
        """
        if not isinstance(file, RemotePath) or not (self.version or is_listed):
            return find_damage(file, self.num_bytes, self.xxh3) is None
        info = file.info_or_none()
        return info is not None and info["size"] == self.num_bytes and self.version in (None, version_of(info))


@dataclass(frozen=True, kw_only=True)
class FinishedPart:
    """A finished part, and the contents of its marker."""

    name: str
    """The name of its task."""
    fingerprint: str
    files: tuple[WrittenFile, ...]
    facts: Any = field(default_factory=dict)
    """Facts that the stage needs to know about the part: a record of its own, or JSON values."""
    release: str = __version__
    """The hbpack release that wrote the marker; another one makes the part again."""

    def value(self) -> Mapping[str, object]:
        """Return what the marker says, as JSON values."""
        return {**vars(self), "facts": json_values(self.facts), "files": [vars(file) for file in self.files]}

    @classmethod
    def read(cls, value: Any, facts: Any) -> FinishedPart:
        """Read the part of `value`, with facts of this kind. Raises ValueError where they are of another one."""
        part = read_record(cls, value)
        return replace(part, facts=read_record(facts, part.facts))


class Sink:
    """Sink of the files that a task writes. Records their checksums."""

    def __init__(self, folder: Path) -> None:
        """Write below `folder`."""
        self.files: list[WrittenFile] = []
        self._folder = folder

    @contextmanager
    def file(self, path: str) -> Iterator[HashingFile]:
        """Write a new file, see `atomic_file`."""
        final = self._folder / path
        with atomic_file(final) as file:
            yield file
        version = version_of(final.info()) if isinstance(final, RemotePath) else None
        self.files.append(WrittenFile(path=path, num_bytes=file.num_bytes, xxh3=file.hexdigest(), version=version))


class MemorySink(Sink):
    """Keeps the files of a task in memory."""

    def __init__(self) -> None:
        """Keep nothing yet."""
        super().__init__(Path())
        self.contents: dict[str, io.BytesIO] = {}

    @contextmanager
    def file(self, path: str) -> Iterator[HashingFile]:
        """Open a new file, which is in `contents` from then on."""
        self.contents[path] = io.BytesIO()
        yield HashingFile(self.contents[path])


def write_part(write: Callable[[Task, Sink], Any], task: Task, folder: Path) -> FinishedPart:
    """Run a task: `write` writes its files to the sink, below the output folder, and returns the part's `facts`."""
    sink = Sink(folder)
    facts = write(task, sink)
    return FinishedPart(name=task.name, fingerprint=task.fingerprint, files=tuple(sink.files), facts=facts)


def remove_work(work: Path) -> None:
    """Remove the work folder of an output.

    The pin of a job array goes first. If the run is killed, no task then takes what is left for an array that goes on.
    """
    (work / PIN).unlink(missing_ok=True)
    remove_folder(work)
