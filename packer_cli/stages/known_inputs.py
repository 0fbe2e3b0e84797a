"""The inputs that a set was packed from: where they are now, and whether they are still what they were."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from packer_cli.corpus.discover import find_files, real_paths
from packer_cli.corpus.types import CorpusFile, Source
from packer_cli.errors import ConfigError, InputError
from packer_cli.remote.system import is_url
from packer_cli.tokens.cutting import Cut
from packer_cli.tokens.index import StoreIndex

REMEDY = (
    "hbpack append only adds to what the set has: put the input back as it was, say where it is now with "
    "--moved OLD=NEW, or run hbpack pack with all inputs"
)


def moved(sources: Sequence[Source], moves: Sequence[str]) -> list[Source]:
    """The inputs where they are now.

    Args:
        moves: OLD=NEW; OLD is an input, or a folder above it, as it was named or from the current folder.

    Raises:
        ConfigError: a move is not of this form, or no input was there.
    """
    found = list(sources)
    for move in moves:
        old, equals, new = move.partition("=")
        if not (old and equals and new):
            raise ConfigError(f"--moved {move}: write OLD=NEW, such as --moved data=/archive/data")
        now = [_moved(source, old, new) for source in found]
        if now == found:
            names = ", ".join(source.name for source in sources)
            raise ConfigError(f"--moved {move}: the set has no input at {old}; its inputs are {names}")
        found = now
    return found


def _moved(source: Source, old: str, new: str) -> Source:
    place = source.name if is_url(source.name) else os.path.join(source.folder, source.name)
    for name, start in ((source.name, old), (_absolute(place), _absolute(old))):
        rest = name.removeprefix(start.rstrip("/"))
        if rest != name and rest[:1] in ("", "/"):
            is_relative = not (is_url(new) or os.path.isabs(new))
            return replace(source, name=new.rstrip("/") + rest, folder=os.getcwd() if is_relative else "")
    return source


def _absolute(name: str) -> str:
    return name if is_url(name) else os.path.abspath(name)


def find_known(sources: Iterable[Source], folder: Path) -> list[CorpusFile]:
    """The files of a set's own inputs.

    Raises:
        InputError: an input is gone.
    """
    files: list[CorpusFile] = []
    for source in sources:
        try:
            files += find_files(source, output=str(folder))
        except InputError as error:
            raise InputError(f"{error}; {REMEDY}") from None
    return files


def require_known(cuts: Iterable[Cut], sources: Sequence[Source], index: StoreIndex) -> None:
    """Raise InputError unless the inputs of a token store hold what they held, and nothing else.

    Args:
        cuts: of all inputs, which may be more than the store's.
    """
    was = _contents((file.source, file.path, file.fingerprint) for part in index.parts for file in part.files)
    slices = [slice_.file for cut in cuts for slice_ in cut.slices]
    now = _contents((file.source_id, file.path, file.fingerprint) for file in slices)
    for number in range(len(index.sources)):
        before, after = was.get(number, {}), now.get(number, {})
        for (old, content), (path, found) in zip(before.items(), after.items(), strict=False):
            if content != found:
                name = path if sources[number].shown(path) == old else f"{path} (instead of {old})"
                raise InputError(f"{name}: has changed since it was packed; {REMEDY}")
        if len(before) != len(after):
            more, what = (after, "is new") if len(after) > len(before) else (before, "is missing")
            path = list(more)[min(len(before), len(after))]
            raise InputError(f"{path}: {what} in {sources[number].name}, an input of the set; {REMEDY}")


def _contents(files: Iterable[tuple[int, str, str]]) -> dict[int, dict[str, str]]:
    """Of each input, the content of each of its files, in order."""
    contents: dict[int, dict[str, str]] = {}
    for source, path, content in files:
        contents.setdefault(source, {})[path] = content
    return contents


def refuse_known(files: Sequence[CorpusFile], sources: Sequence[Source], num_known: int) -> None:
    """Raise InputError if a file of a new input is also one of the first `num_known` inputs, however it is named."""
    known: dict[str, CorpusFile] = {}
    for file, real in zip(files, real_paths([file.path for file in files]), strict=True):
        if file.source_id < num_known:
            known.setdefault(real, file)
        elif real in known:
            name = sources[known[real].source_id].name
            other = "" if name == file.path else f", from the input {name}"
            raise InputError(f"{file.path} is in the set already{other}; leave it out")
