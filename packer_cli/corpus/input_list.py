"""A list of inputs, `--inputs FILE`: files by name, with the sizes, checksums and ETags that they must have.

It takes the place of listing folders: a run reads these files and no others, and none that has changed. JSON lines, or
a JSON array, of `Entry`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass

from packer_cli.corpus.data_files import named_file
from packer_cli.corpus.types import CorpusFile
from packer_cli.corpus.unchanged import content_of, stamp_of_object
from packer_cli.errors import ConfigError, InputError
from packer_cli.format.records import json_values, read_record
from packer_cli.remote.path import RemotePath, as_path, version_of
from packer_cli.remote.system import is_url

MARK = "@"
"""An input that begins so is a list, unless there is a file of this name."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A file of a list. What is None is not checked."""

    path: str
    """Its URL, or its path, from the folder of the list where it is relative."""
    size: int | None = None
    """Its bytes."""
    etag: str | None = None
    """The storage's name for this version of an object."""
    xxh3: str | None = None
    """xxh3-128 of its content (hex), as `xxhsum -H2` prints it; of several files that belong together, over those of
    each."""


def read_list(path: str) -> list[CorpusFile]:
    """Read the files of a list. Whoever cuts them compares their contents with `CorpusFile.expected`.

    Raises:
        InputError: the list cannot be read, or a file is missing, or has another size or ETag.
    """
    try:
        text = as_path(path).read_bytes().decode().strip()
        lines = filter(str.strip, text.split("\n"))
        values = json.loads(text if text.startswith("[") else f"[{','.join(lines)}]")
        entries = [read_record(Entry, value) for value in values]
        if not entries:
            raise ValueError("it names no file")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise InputError(
            f"{path}: not a list of inputs ({reason}); it has an object a line, such as "
            '{"path": "a.jsonl", "size": 12}, with etag and xxh3 where they are known'
        ) from None
    return [_checked(entry, path) for entry in entries]


def _checked(entry: Entry, path: str) -> CorpusFile:
    info = RemotePath(entry.path).info_or_none() if is_url(entry.path) else None
    name = entry.path if is_url(entry.path) else os.path.join(os.path.dirname(path), entry.path)
    if info is None and not os.path.isfile(name):
        raise InputError(f"{name}: is missing, and the list {path} has it; put it back, or correct the list")
    file = named_file(name, None if info is None else stamp_of_object(info))
    etag = None if info is None else (version_of(info) or "").strip('"')
    for what, wanted, found in (("size", entry.size, file.num_bytes), ("ETag", entry.etag, etag)):
        if wanted is not None and wanted != found:
            raise InputError(differs(name, what, wanted, found))
    return file._replace(expected=entry.xxh3 or "")


def differs(name: str, what: str, wanted: object, found: object) -> str:
    """Say how a file differs from its entry in a list."""
    return f"{name}: its {what} is {found}, and {wanted} in the list of inputs; put it back, or correct the list"


def text_of_list(path: str, files: Sequence[CorpusFile]) -> str:
    """Write a list of files as they are now, to be written to `path`. Price: reading those that have no ETag.

    Raises:
        ConfigError: one is a data set by name, which has no file.
    """
    lines = []
    for file in files:
        if file.format == "datasets":
            raise ConfigError(f"{file.path}: a data set of several files cannot be listed; leave it out")
        etag = version_of(RemotePath(file.path).info()) if is_url(file.path) else None
        name = file.path if is_url(file.path) else os.path.relpath(file.path, os.path.dirname(path) or ".")
        known = {"etag": etag.strip('"')} if etag else {"xxh3": content_of(file)}
        lines.append(json.dumps(json_values(Entry(path=name, size=file.num_bytes, **known)), ensure_ascii=False))
    return "\n".join(lines) + "\n"
