"""Inputs as runs found them, by the stamp that each file had: its contents, and how it is cut.

`inputs.json` lies beside the index of the store, so that a run need not read files that are as they were. A stamp
(`packer_cli.corpus.unchanged`) is a fact of one machine, so no fingerprint covers this file, and it may be missing.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from packer_cli.corpus.types import CorpusFile, CorpusSlice, FileFormat, Source
from packer_cli.corpus.unchanged import stamp_of
from packer_cli.files import fingerprint, write_text
from packer_cli.format.checksums import require_damage
from packer_cli.format.records import json_values, read_record
from packer_cli.remote.system import is_url
from packer_cli.tokens.index import PartFile
from packer_cli.version import __version__

NAME = "inputs.json"


@dataclass(frozen=True, kw_only=True)
class KnownSlice:
    """A slice of a file, as it was read."""

    stamp: str
    """The stamp of the file."""
    is_settled: bool = False
    """Whether the file holds the same as long as it has this stamp."""
    fingerprint: str
    format: FileFormat
    start: int
    stop: int
    first_line: int
    xxh3: str
    span: tuple[int, int] | None = None

    @classmethod
    def of(cls, slice_: CorpusSlice) -> KnownSlice:
        """Note a slice whose file has been read."""
        found = slice_.file._asdict() | slice_._asdict() | {"xxh3": slice_.xxh3 or slice_.file.fingerprint}
        return cls(**{each.name: found[each.name] for each in fields(cls) if each.name in found})

    def slice_of(self, file: CorpusFile) -> CorpusSlice:
        """Return the slice of a file that has the stamp."""
        file = file._replace(fingerprint=self.fingerprint, format=self.format)
        return CorpusSlice(file, self.start, self.stop, self.first_line, xxh3=self.xxh3, span=self.span)


class KnownInputs:
    """The files that earlier runs have read."""

    def __init__(self, folder: Path, *, recheck: bool = False) -> None:
        """Read what is known.

        Args:
            folder: of the store.
            recheck: know nothing, so that every file is read.
        """
        self._path = folder / NAME
        self._was = _read(self._path)
        self._slices = {} if recheck else self._was

    def find(self, file: CorpusFile) -> list[CorpusSlice] | None:
        """Return the slices of a file that still has the stamp that it was read with; None for any other."""
        if file.is_part:
            return [CorpusSlice(file, 0, 1)]
        rows = self._slices.get(_name(file.path), [])
        if not rows or rows[0]["stamp"] != file.stamp or file.expected not in ("", rows[0]["fingerprint"]):
            return None
        if not is_url(file.path) and stamp_of(file) != file.stamp:
            return None
        return [read_record(KnownSlice, row).slice_of(file) for row in rows]

    def write(self, sources: Sequence[Source], parts: Iterable[tuple[PartFile, KnownSlice]]) -> None:
        """Keep what was found in all files of the store, in order, unless that is known already."""
        found: dict[str, dict[KnownSlice, None]] = {}
        for file, slice_ in parts:  # Several inputs may have one file.
            found.setdefault(_name(os.path.join(sources[file.source].folder, file.path)), {})[slice_] = None
        files = {
            name: json_values([*slices])
            for name, slices in found.items()
            if all(each.is_settled for each in slices) and len({each.stamp for each in slices}) == 1
        }
        if files != self._was:
            own = {"files": files, "release": __version__, "xxh3": fingerprint(files, __version__)}
            write_text(self._path, json.dumps(own), sync=False)

    def forget(self) -> None:
        """Remove what is known, as a file was found to be another one than its stamp says."""
        self._path.unlink(missing_ok=True)


def _name(path: str) -> str:
    return path if is_url(path) else os.path.abspath(path)


def _read(path: Path) -> Mapping[str, Any]:
    """Read the slices of files; none of a file that this release has not written, or that is damaged."""
    try:
        value = json.loads(path.read_bytes())
        is_whole = value["release"] == __version__ and value["xxh3"] == fingerprint(value["files"], __version__)
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        require_damage(error)
        return {}
    return value["files"] if is_whole else {}
