"""The records that a set leaves out on request: the entries of `--exclude`, and what the set keeps of them.

The set remembers *keys*, which quote nothing of a record: `FINGERPRINT:LINE` for a line of all files with this
content, `COLUMN=DIGEST` for a value of a kept column, `hash:HASH` for the tokens of a sample. Every later run leaves
out what has one of these keys, so a record comes back neither with a later file nor after `hbpack restore`.

A part that holds such records is written again without them: the rows of the others are copied, nothing is tokenized,
and no input is read. The new part's name follows from the part as it was tokenized and the lines that it lacks. So it
is the same part whether these were excluded at once, one after another, or by other keys.

Price: where keys are new, the lines of a part that may hold such records, its kept columns if a key is of one, and its
tokens if a key is a hash.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

import numpy as np

from packer_cli.engine.local import Engine
from packer_cli.engine.progress import warn
from packer_cli.engine.sink import FinishedPart, Sink
from packer_cli.errors import ConfigError
from packer_cli.files import fingerprint, write_text
from packer_cli.format.arrays import columns_of, to_arrow
from packer_cli.format.schema import KEPT, token_type
from packer_cli.remote.path import as_path
from packer_cli.tokens.accounts import SUMMED
from packer_cli.tokens.index import EXCLUDED, PartInfo, StoreIndex, open_part, part_name
from packer_cli.tokens.part import PartFacts
from packer_cli.tokens.writer import FIGURES, PartWriter

EXCLUDED_NAME = "excluded.txt"
"""File in the set's folder with a line for each key; no fingerprint covers it."""


def files_named(name: str, files: Collection[str]) -> list[str]:
    """Find the files that a name may mean: it has fewer, or more, of the folders above a file than the set has."""
    wanted = _plain(name)
    plain = {file: _plain(file) for file in files}
    near = [file for file in files if plain[file].endswith(wanted) or wanted.endswith(plain[file])]
    return [file for file in near if plain[file] == wanted] or near


@cache
def _plain(name: str) -> str:
    """Write a path without `.`, `..` and `/` that change nothing, and with `/` before it."""
    return f"/{os.path.normpath(name)}"


def _lines_of(path: Path) -> list[str]:
    return list(dict.fromkeys(filter(None, path.read_bytes().decode(errors="surrogateescape").split("\n"))))


def remembered(folder: Path) -> frozenset[str]:
    """Return the keys that a set remembers."""
    path = folder / EXCLUDED_NAME
    return frozenset(_lines_of(path) if path.exists() else ())


def digest_of(keys: Collection[str]) -> str:
    """Return the fingerprint of keys that a store's index has: empty if there are none."""
    return fingerprint(sorted(keys)) if keys else ""


def _columns(keys: Iterable[str]) -> list[str]:
    return sorted({key.rpartition("=")[0] for key in keys if "=" in key})


class Exclusions:
    """The records that a run leaves out: those of its own entries, and those that the set remembers."""

    def __init__(self, name: str | None, folder: Path, kept: Sequence[str], before: StoreIndex | None) -> None:
        """Read the entries, and the keys that the set remembers.

        Args:
            name: the file of `--exclude`.
            folder: of the set.
            kept: the columns that its store keeps.
            before: the store as it is.

        Raises:
            ConfigError: the file cannot be read, a line is no entry, or a column that keys are of is not kept.
        """
        self._path, self._before, self._column = folder / EXCLUDED_NAME, before, next(iter(kept), "id")
        try:
            self._entries = _lines_of(as_path(name)) if name else []
        except OSError as error:
            raise ConfigError(
                f"--exclude {name}: {error.strerror or error}; name a text file with an entry a line"
            ) from None
        self._known = remembered(folder)
        for column in _columns(self._known.union(*self._own(()).values())):
            if column not in kept:
                raise ConfigError(f"records are excluded by their {column}; keep it, with --keep-columns {column}")
        self.agreed = fingerprint(self._entries, sorted(self._known))
        """Fingerprint of all that decides which records are left out."""

    def __len__(self) -> int:
        """About how many records they are; one that several entries or keys name counts for each."""
        return max(len(self._entries), len(self._known))

    def _own(self, parts: Iterable[PartInfo]) -> dict[str, list[str]]:
        """Find the keys of the run's own entries in these parts; none of a line unless one file has its name.

        Raises:
            ConfigError: an entry is none.
        """
        contents = {file.path: file.fingerprint for part in parts for file in part.files}
        near, found = cache(partial(files_named, files=contents)), {}
        for entry in self._entries:
            name, _, line = entry.rpartition(":")
            if entry.startswith("id:"):
                found[entry] = [f"{self._column}={fingerprint(entry.removeprefix('id:'))}"]
            elif name == "hash":
                found[entry] = [entry]
            elif not (name and line.isdecimal()):
                raise ConfigError(f"--exclude: {entry!r} is not FILE:LINE, id:VALUE or hash:HASH; correct it")
            else:
                found[entry] = [f"{contents[path]}:{int(line)}" for path in near(name) if len(near(name)) == 1]
        return found

    def _keys(self, parts: Iterable[PartInfo]) -> tuple[frozenset[str], str]:
        """Return all keys of these parts, and their digest."""
        keys = self._known.union(*self._own(parts).values())
        return keys, digest_of(keys)

    def are_of(self, index: StoreIndex | None) -> bool:
        """Whether a store was made without these records."""
        return index is not None and index.excluded == self._keys(index.parts)[1]

    def leave_out(self, engine: Engine, store: Path, parts: dict[str, FinishedPart]) -> None:
        """Write the parts of a share again that hold these records, and put the new ones in their places."""
        (keys, digest), before = self._keys(part.facts.part for part in parts.values()), self._before
        checked = {part.path for part in before.parts if before.excluded == digest} if before else set()
        todo = [part for part in parts.values() if keys and part.facts.part.path not in checked]
        for _, part in engine.run(partial(_write_without, store, keys), todo):
            if isinstance(part, FinishedPart):
                parts[part.name] = part

    def remember(self, index: StoreIndex, parts: Iterable[FinishedPart]) -> StoreIndex:
        """Remember these records, before the index is written, and return the index with them.

        Entries that match no record are named, and lines that may no longer be found are said.

        Args:
            parts: all parts as they were made or kept.
        """
        own, (keys, digest) = self._own(index.parts), self._keys(index.parts)
        if keys != self._known:
            write_text(self._path, "".join(f"{key}\n" for key in sorted(keys)))
        found = self._known.union(*(part.facts.excluded for part in parts))
        if missing := [entry for entry, each in own.items() if not found.intersection(each)]:
            what = f"{len(missing):,} of {len(own):,} entries match no record, or several files"
            warn(f"--exclude: {what}, such as {', '.join(missing[:8])}")
        was, now = ({f.fingerprint for p in each.parts for f in p.files} for each in (self._before or index, index))
        if any(key.partition(":")[0] in was - now for key in self._known):
            warn("files with excluded lines are gone or have changed; exclude the lines of changed files again")
        return replace(index, excluded=digest)


def _write_without(folder: Path, keys: frozenset[str], part: FinishedPart) -> FinishedPart | None:
    """Write a part of the store in a folder without these records; None if it is as it was.

    Raises:
        FormatError: the part is damaged.
    """
    facts: PartFacts = part.facts
    info, columns, begins = facts.part, _columns(keys), {key.partition(":")[0] for key in keys}
    contents, token = [file.fingerprint for file in info.files], token_type(facts.tokenizer.vocab_size)
    if not (columns or begins.intersection(["hash", *contents])):
        return None
    file_of = iter([k for k, file in enumerate(info.files) for _ in range(file.num_samples)])
    batches, matched, records, excluded = open_part(folder, info, token), set[str](), [], {*info.excluded}
    for batch in batches:
        rows = columns_of(batch)
        own = [(k, line) for line, k in zip(rows["line"].tolist(), file_of, strict=False)]
        found = [[f"{contents[k]}:{line}" for k, line in own]]
        found += [[f"{name}={fingerprint(v)}" for v in batch.column(KEPT + name).to_pylist()] for name in columns]
        if "hash" in begins:
            found.append([f"hash:{each:016x}" for each in rows["content_hash"].tolist()])
        for record, *of_row in zip(own, *found, strict=True):
            if not keys.isdisjoint(of_row):
                matched |= keys.intersection(of_row)
                excluded.add(record)  # With all of its samples.
        records.append(own)
    if not matched:
        return None
    path, sink = part_name(fingerprint(info.fingerprint, sorted(excluded))), Sink(folder)
    kept = [name.removeprefix(KEPT) for name in batches[0].schema.names if name.startswith(KEPT)]
    with sink.file(path) as file:
        writer = PartWriter(file, token, info.columns, num_slices=len(contents), keep=kept)
        for batch, own in zip(batches, records, strict=True):
            if left := [row for row, record in enumerate(own) if record not in excluded]:
                writer.write_rows(batch.take(to_arrow(np.array(left))), np.array([own[row][0] for row in left]))
        writer.close()
    num, files = Counter(k for k, _ in excluded), []
    for k, each in enumerate(info.files):
        reasons = each.reasons | ({EXCLUDED: num[k]} if num[k] else {})
        figures = dict(zip(FIGURES, writer.of_slices[k].tolist(), strict=True))
        files.append(replace(each, **figures, num_rejected=sum(reasons.values()), reasons=reasons))
    sums = {name: sum(getattr(file, name) for file in files) for name in SUMMED} | writer.figures
    info = replace(info, path=path, files=tuple(files), excluded=tuple(sorted(excluded)), **sums)
    rejects = [each for each in part.files if each.path != facts.part.path]
    facts = replace(facts, part=info, excluded=tuple(sorted(matched)))
    return replace(part, files=(*sink.files, *rejects), facts=facts)
