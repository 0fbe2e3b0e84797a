"""The tokenize stage as a task of a job array: the parts of its share, and a record of them.

Whoever finds the records of all tasks makes the index from them (`complete_store`). The store is that of
`packer_cli.tokens.stage`, byte for byte.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from packer_cli.config import TokenizeConfig
from packer_cli.corpus.discover import find_files
from packer_cli.corpus.types import CorpusFile, Source
from packer_cli.corpus.versions import content_of
from packer_cli.engine.array import ArrayRecords, ArrayShare, Pin
from packer_cli.engine.base import Engine
from packer_cli.engine.parts import Parts
from packer_cli.engine.progress import Progress
from packer_cli.engine.sink import FinishedPart
from packer_cli.errors import InputError, RunError
from packer_cli.files import fingerprint
from packer_cli.format.records import read_record
from packer_cli.tokens.cutting import cut_units, list_units
from packer_cli.tokens.index import INDEX_NAME, STORE_VERSION, WORK, StoreIndex, write_index
from packer_cli.tokens.part import PartFacts, PartTask
from packer_cli.tokens.stage import (
    Header,
    check_rejected,
    current_index,
    dated,
    discover_of,
    header_of,
    listed_parts,
    make_parts,
    names_of,
    no_data,
    part_tasks,
    remove_stale,
    renamed,
    slice_bytes,
)
from packer_cli.tokens.tokenizer.files import tokenizer_fingerprint


@dataclass(frozen=True, kw_only=True)
class StoreFacts:
    """What completing a store needs besides its parts."""

    header: Header
    max_rejected: int | None


def tokenize_share(
    config: TokenizeConfig,
    folder: Path,
    engine: Engine,
    share: ArrayShare,
    progress: Progress = lambda done, total: None,
) -> tuple[StoreIndex | None, int]:
    """Tokenize the inputs' share of one task, reading only the files that it overlaps.

    Returns what the index would be for these parts alone, None if there are none; and the number of records in kept
    parts.

    Args: see `tokenize`.

    Raises:
        ConfigError: the task does not agree with the others; see `ArrayShare.join`.
        UsageError, TooManyRejectedError: see `tokenize`.
    """
    config = dated(config, folder)
    sources, files = discover_of(config, folder)
    units, task = list_units(files), share.task
    total = units[-1].stop if units else 0
    near = [unit for unit in units if (task.takes if unit.is_shared else task.overlaps)(unit.start, unit.stop, total)]
    cuts = [cut for cut in cut_units(near, engine) if task.takes(cut.start, cut.stop, total)]
    tasks = part_tasks(config, cuts)
    header = header_of(config, sources)
    before = current_index(folder)
    repairs = (folder / INDEX_NAME).exists() and before is not None and _vouches(before, header, sources, files, tasks)
    parts = Parts(folder, WORK, INDEX_NAME, tasks, slice_bytes(tasks), facts=PartFacts, repairs=repairs)
    if not repairs:
        share.join(_agreed(config, header, files), StoreFacts(header=header, max_rejected=config.max_rejected))
    parts.find(engine, {**listed_parts(folder, before), **share.recorded(PartFacts)})
    if parts.todo and not repairs:
        share.discard()
    num_reused = make_parts(config, parts, folder, engine, progress)
    finished = renamed(parts, tasks, sources)
    if not repairs:
        share.record({task.name: _stamped(finished[task.name], task) for task in tasks})
    return header.index(finished.values()) if finished else None, num_reused


def complete_store(folder: Path) -> StoreIndex:
    """Write the index of a store of which all tasks of an array are done.

    The records stay: what else is to be completed would be lost if the run were killed. Nothing else may write to the
    store. Price: reading the records.

    Raises:
        TooManyRejectedError: see `--max-rejected`.
        RunError: the inputs hold no data, or tasks have read different versions of a file. The records of those that
            have to run again are then removed.
    """
    records = ArrayRecords(folder / WORK)
    pin, parts = records.pin(), records.parts(PartFacts)
    assert pin is not None
    assert parts is not None
    facts = read_record(StoreFacts, pin.facts)
    header = facts.header
    if not parts:
        raise RunError(no_data([source.name for source in header.sources]))
    sources = [info.source(number) for number, info in enumerate(header.sources)]
    require_one_version(records, pin, sources, output=str(folder.parent))
    index = header.index(parts.values())
    check_rejected(sum(part.num_refused for part in index.parts), facts.max_rejected, folder)
    write_index(folder, index)
    remove_stale(folder, index)
    return index


def _stamped(part: FinishedPart, task: PartTask) -> FinishedPart:
    """The part, with what tells the versions of its files from others."""
    stamps = tuple(slice_.file.stamp for slice_ in task.slices)
    return replace(part, facts=replace(part.facts, stamps=stamps))


def _agreed(config: TokenizeConfig, header: Header, files: Sequence[CorpusFile]) -> dict[str, str]:
    """What all tasks of an array must agree on, by its name for people."""
    listing = [[file.path, file.source_id, file.num_bytes, file.format, file.compression] for file in files]
    return {
        "the inputs": fingerprint([asdict(source.given) for source in header.sources], listing),
        "the tokenizer": fingerprint(config.tokenizer, tokenizer_fingerprint(config.tokenizer)),
        "the options": fingerprint(header.options.values()),
        "the versions of libraries": fingerprint(header.library_versions, STORE_VERSION),
    }


def _vouches(
    index: StoreIndex,
    header: Header,
    sources: Sequence[Source],
    files: Sequence[CorpusFile],
    tasks: Sequence[PartTask],
) -> bool:
    """Whether a finished store was made from these inputs in this way, as far as a task of an array can tell."""
    given = [[replace(source, skipped=None) for source in each.sources] for each in (index, header)]
    described = (index.tokenizer.name, index.options, index.library_versions, given[0])
    if described != (header.tokenizer, header.options, header.library_versions, given[1]):
        return False
    known = {(sources[file.source_id].shown(file.path), file.source_id) for file in files}
    if any((file.path, file.source) not in known for part in index.parts for file in part.files):
        return False
    infos = {info.path: info for info in index.parts}
    return all(
        (info := infos.get(task.name)) is not None
        and info.fingerprint == task.fingerprint
        and [(file.path, file.source) for file in info.files] == names_of(task, sources)
        for task in tasks
    )


Key = tuple[int, str]
"""A file: its input, and the name that is written down."""
Read = dict[int, tuple[str, str]]
"""Of a file, by task: the stamp and the fingerprint of the version that it read."""


def require_one_version(records: ArrayRecords, pin: Pin, sources: Sequence[Source], *, output: str) -> None:
    """Compare what the tasks read with each other and with the files as they are now.

    A file that is gone by now is only compared between tasks. Price: listing the inputs, and reading those files whose
    stamp (see `corpus.versions`) no task has seen.

    Raises:
        RunError: tasks have read other versions. Their records are removed, so that they run again.
    """
    read = _read_by_tasks(records, pin)
    now = _listed(sources, output)
    stale: set[int] = set()
    changed: list[str] = []
    for key, versions in read.items():
        current = _current(now.get(key), versions)
        others = {task for task, (_, content) in versions.items() if content != current}
        if others:
            stale |= others
            changed.append(key[1])
    if stale:
        for task in stale:
            records.path(task).unlink(missing_ok=True)
        names = ", ".join(str(pin.id_of(task)) for task in sorted(stale))
        tasks = f"task {names}" if len(stale) == 1 else f"tasks {names}"
        more = f" (and {len(changed) - 1:,} more)" if len(changed) > 1 else ""
        raise RunError(
            f"{changed[0]}{more}: the file has changed since {tasks} of the array read it; run {tasks} again once "
            "nothing writes to it"
        )


def _read_by_tasks(records: ArrayRecords, pin: Pin) -> Mapping[Key, Read]:
    read: dict[Key, Read] = defaultdict(dict)
    for task in range(pin.num_tasks):
        for part in (records.read(task, pin, PartFacts) or {}).values():
            for file, stamp in zip(part.facts.part.files, part.facts.stamps, strict=True):
                read[file.source, file.path][task] = (stamp, file.fingerprint)
    return read


def _listed(sources: Sequence[Source], output: str) -> dict[Key, CorpusFile]:
    listed: dict[Key, CorpusFile] = {}
    for source in sources:
        with suppress(InputError):  # It is gone.
            files = find_files(source, output=output)
            listed |= {(source.source_id, source.shown(file.path)): file for file in files}
    return listed


def _current(file: CorpusFile | None, versions: Read) -> str | None:
    """The content of the file; None if it is gone, and tasks have read more than one version."""
    contents = {content for _, content in versions.values()}
    if file is None:
        return contents.pop() if len(contents) == 1 else None
    by_stamp = dict(versions.values())
    return by_stamp.get(file.stamp) or content_of(file)
