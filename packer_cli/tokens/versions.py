"""Whether all tasks of a job array have read the same version of each input, and the one that is there now."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress

from packer_cli.corpus.discover import find_files
from packer_cli.corpus.types import CorpusFile, Source
from packer_cli.corpus.versions import content_of
from packer_cli.engine.array import ArrayRecords, Pin
from packer_cli.errors import InputError, RunError

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
        for part in (records.read(task, pin) or {}).values():
            for file, stamp in zip(part.facts["part"]["files"], part.facts["stamps"], strict=True):
                read[file["source"], file["path"]][task] = (stamp, file["fingerprint"])
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
