"""The facts that the tasks of a tokenizing job array agree on, and the version of the inputs that the tasks read."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from packer_cli.config import TokenizeConfig
from packer_cli.corpus.types import CorpusFile, Source
from packer_cli.corpus.unchanged import content_of, stamp_of
from packer_cli.engine.array import TaskShare
from packer_cli.engine.sink import FinishedPart
from packer_cli.errors import InputError, RunError
from packer_cli.files import fingerprint, intact_or_none
from packer_cli.format.constants import STORE_COPY
from packer_cli.format.versions import version_folders
from packer_cli.tokens.index import STORE_VERSION, StoreIndex, read_index
from packer_cli.tokens.part import PartTask
from packer_cli.tokens.tokenizer.files import tokenizer_fingerprint


def index_of(header: StoreIndex, parts: Iterable[FinishedPart]) -> StoreIndex:
    """Make the index of these parts, in order; at least one.

    Args:
        header: facts about the whole store, without parts; of the tokenizer, the name that the user gave.
    """
    facts = [part.facts for part in parts]
    infos = tuple(each.part for each in facts)
    contents = [[part.fingerprint, [file.source for file in part.files], *part.excluded] for part in infos]
    return replace(
        header,
        fingerprint=fingerprint(contents, [source.share for source in header.sources]),
        tokenizer=replace(facts[0].tokenizer, name=header.tokenizer.name),
        parts=infos,
    )


def no_data(names: Sequence[str]) -> str:
    """Write why there is no store: the inputs are empty."""
    return f"the inputs hold no data: {', '.join(names)}; name others"


def names_of(task: PartTask, sources: Sequence[Source]) -> list[tuple[str, int]]:
    """Return the names and sources of a part's files, as its info has them."""
    files = [slice_.file for slice_ in task.slices]
    return [(sources[file.source_id].shown(file.path), file.source_id) for file in files]


def agreed(config: TokenizeConfig, header: StoreIndex, files: Sequence[CorpusFile]) -> dict[str, str]:
    """Fingerprint the things that all tasks of an array must agree on, by their names for people."""
    listing = [[file.path, file.source_id, file.num_bytes, file.format, file.compression] for file in files]
    return {
        "the inputs": fingerprint([(source.name, source.share) for source in header.sources], listing),
        "the tokenizer": fingerprint(config.tokenizer, tokenizer_fingerprint(config.tokenizer)),
        "the options": fingerprint(vars(header.options)),
        "--date": header.options.date or "",
        "--exclude": header.excluded,
        "the versions of libraries": fingerprint(header.library_versions, STORE_VERSION),
    }


def vouches(
    index: StoreIndex | None,
    header: StoreIndex,
    sources: Sequence[Source],
    files: Sequence[CorpusFile],
    tasks: Sequence[PartTask],
) -> bool:
    """Whether a finished store was made from these inputs in this way, as far as a task of an array can tell."""
    if index is None or _facts(index) != _facts(header):
        return False
    known = {(sources[file.source_id].shown(file.path), file.source_id): file.num_bytes for file in files}
    listed = {(file.path, file.source) for part in index.parts for file in part.files}
    if not listed <= known.keys() or any(known[key] for key in known.keys() - listed):
        return False
    parts = {(info.fingerprint, *((file.path, file.source) for file in info.files)) for info in index.parts}
    return all((task.fingerprint, *names_of(task, sources)) in parts for task in tasks)


def _facts(index: StoreIndex) -> tuple[object, ...]:
    sources = [replace(source, skipped=None) for source in index.sources]
    return index.tokenizer.name, index.options, index.library_versions, sources


Key = tuple[int, str]
"""A file: its input, and the name that is written down."""
Read = dict[int, tuple[str, str]]
"""Stamp and fingerprint of the version of a file that each task read, by task."""


def require_one_version(
    share: TaskShare,
    parts: Sequence[Mapping[str, FinishedPart]],
    sources: Sequence[Source],
    files: Sequence[CorpusFile],
) -> None:
    """Compare the versions that the tasks read with each other and with the files that the last task has listed.

    A file that is gone by now is only compared between tasks. Price: reading the files whose stamp (see
    `corpus.unchanged`) no task has seen.

    Args:
        parts: the finished parts of each task.

    Raises:
        RunError: tasks have read other versions. Their records are removed, so that they run again.
    """
    listed = {(file.source_id, sources[file.source_id].shown(file.path)): file for file in files}
    stale: set[int] = set()
    changed: list[str] = []
    for key, versions in _read_by_tasks(parts).items():
        current = _current(listed.get(key), versions)
        others = {task for task, (_, content) in versions.items() if content != current}
        if others:
            stale |= others
            changed.append(key[1])
    if stale:
        names = ", ".join(map(str, share.expire(sorted(stale))))
        tasks = f"task {names}" if len(stale) == 1 else f"tasks {names}"
        more = f" (and {len(changed) - 1:,} more)" if len(changed) > 1 else ""
        raise RunError(
            f"{changed[0]}{more}: the file has changed since {tasks} of the array read it; run {tasks} again once "
            "nothing writes to it"
        )


def _read_by_tasks(parts: Sequence[Mapping[str, FinishedPart]]) -> Mapping[Key, Read]:
    read: dict[Key, Read] = defaultdict(dict)
    for task, each in enumerate(parts):
        for part in each.values():
            for file, slice_ in zip(part.facts.part.files, part.facts.slices, strict=True):
                read[file.source, file.path][task] = (slice_.stamp, file.fingerprint)
    return read


def _current(file: CorpusFile | None, versions: Read) -> str | None:
    """Find the content of the file; return None if it is gone, and tasks have read more than one version."""
    by_stamp = dict(versions.values())
    if file is not None:
        with suppress(InputError):  # It is gone.
            return by_stamp.get(file.stamp) or content_of(file._replace(stamp=stamp_of(file)))
    contents = {*by_stamp.values()}
    return contents.pop() if len(contents) == 1 else None


def remove_stale(folder: Path, index: StoreIndex) -> None:
    """Remove the parts of another run that neither the index nor a version lists."""
    kept = [index, *(intact_or_none(read_index, home, STORE_COPY) for home in version_folders(folder.parent))]
    parts = [part for each in kept if each is not None for part in each.parts]
    names = {name for part in parts for name in (part.path, part.rejects_xxh3 and part.rejects_name)}
    for path in [*folder.glob("part-*.arrow"), *folder.glob("rejected-*.jsonl")]:
        if path.name not in names:
            path.unlink()
