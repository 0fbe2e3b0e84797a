"""The export stage: writes the packs of a set in the format of another trainer, part by part.

The export stage as a task of a job array: the parts of its share, and a record of them. Each task checks its share of
the set's shards, so all of them have been checked once the export is complete.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Collection, Hashable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from packer_cli.config.set_options import ExportConfig
from packer_cli.engine.array import TaskShare, merged
from packer_cli.engine.local import Engine, LocalEngine
from packer_cli.engine.output import Output, Parts
from packer_cli.engine.progress import Progress, Stopwatch, progress_bar, say
from packer_cli.engine.sink import FinishedPart, Sink, WrittenFile, write_part
from packer_cli.errors import ConfigError, FormatError
from packer_cli.export.formats import load_format
from packer_cli.export.job import Job, Part, cut_parts
from packer_cli.export.listing import NAME, WORK, ExportHeader, ExportListing, count_files, read_listing
from packer_cli.export.options import choose_groups, describe_export, is_same_export, packs_by_id, packs_by_use
from packer_cli.export.packed import PackedSet
from packer_cli.files import write_json
from packer_cli.folder_lock import TaskLock, hold_folder
from packer_cli.format.manifest import Manifest
from packer_cli.format.records import json_values, read_record
from packer_cli.format.versions import set_at
from packer_cli.remote.path import is_remote
from packer_cli.shards.manifest import read_manifest
from packer_cli.sizes import counted, format_bytes
from packer_cli.version import __version__

_BLOCK = 8 * 2**20


class _Work:
    """Writes parts of one export: the function of its tasks.

    Pickled, it is the names of the set and the output and the header, from which a worker process opens the job once.
    Checking the set is left to the process that made it.
    """

    def __init__(self, job: Job) -> None:
        self._job = job

    def __call__(self, part: Part) -> FinishedPart:
        """Write a part."""
        return write_part(partial(self._job.format.write_part, self._job), part, self._job.folder)

    def __reduce__(self) -> tuple[Any, ...]:
        job = self._job
        return _open_work, (job.source, job.folder, json.dumps(job.header), job.prepared)


@lru_cache(maxsize=1)
def _open_work(source: Path, folder: Path, header: str, prepared: Hashable) -> _Work:
    job = _open_job(source, read_manifest(source), folder, json.loads(header), LocalEngine(1), to_check=())
    job.prepared = prepared
    return _Work(job)


def _open_job(
    source: Path, manifest: Manifest, folder: Path, header: ExportHeader, engine: Engine, to_check: Collection[str]
) -> Job:
    """Open the job of what is asked for.

    Args:
        to_check: see `PackedSet`.
    """
    format = load_format(header["format"])
    groups = choose_groups(manifest, ",".join(header["groups"]))
    if header["epoch"] is None:
        packs = packs_by_id(manifest, groups)
    else:
        packs = packs_by_use(source, manifest, groups, header["epoch"])
    if not len(packs):
        raise ConfigError(f"--groups: {', '.join(header['groups'])} hold no packs; choose groups that do")
    packed = PackedSet(source, manifest, groups, engine, to_check=to_check)
    num_tokens, num_samples = packed.num_tokens[packs].astype(np.int64), packed.num_samples[packs].astype(np.int64)
    row_bytes = format.row_bytes(num_tokens, num_samples)
    if header.get("loss_weights"):
        row_bytes = row_bytes + format.weight_bytes * num_tokens
    return Job(
        source=source,
        manifest=manifest,
        folder=folder,
        header=header,
        format=format,
        packed=packed,
        groups=tuple(groups),
        packs=packs,
        parts=cut_parts(row_bytes, header["shard_size"], header["fingerprint"]),
    )


class Exporter(Output[ExportListing]):
    """A packed set in another trainer's format.

    An export that was killed goes on where it stopped: parts are kept whose checksums hold. Memory: 8 bytes a row, 10
    bytes a pack, and a few million tokens a thread.
    """

    command, name = "export", "the export"

    def __init__(self, options: ExportConfig, source: Path, folder: Path) -> None:
        """Read the packed set's manifest.

        Raises:
            ConfigError: an option does not fit the set or the format.
        """
        self._source, self._watch = set_at(source), Stopwatch()
        self._manifest = read_manifest(self._source)
        self._header = describe_export(options, source, self._manifest)
        self.folder, self.work, self.listing = folder, folder / WORK, folder / NAME

    def hold(self, lock: TaskLock | None) -> AbstractContextManager[None]:
        """See `Output`."""
        return hold_folder(self.folder, lambda entries: is_same_export(self.folder, entries, self._header), lock)

    def make_share(self, engine: Engine, share: TaskShare) -> ExportListing | None:
        """See `Output`.

        Raises:
            ConfigError: the task does not agree with the others.
            FormatError: the set is damaged; or parts of a complete export are.
        """
        with progress_bar("Exporting", unit="tokens") as progress:
            return self._make_share(engine, progress, share)

    def _make_share(self, engine: Engine, progress: Progress, share: TaskShare) -> ExportListing | None:
        folder, header, manifest = self.folder, self._header, self._manifest
        listing = read_listing(folder)
        joins = not (listing or share.is_whole)
        if joins:
            _mark_folder(folder, header)
            share.join({"the export": header["fingerprint"]})
        shards = [info for group in manifest.groups if group.name in header["groups"] for info in group.shards]
        to_check = [*shards, *manifest.tokens]
        own_files = share.task.share(to_check, [info.num_bytes for info in to_check])
        try:
            job = self._job = _open_job(
                self._source, manifest, folder, header, engine, {info.path for info in own_files}
            )
        except FormatError:
            if joins:
                share.start_over()  # The parts of the others may hold what is damaged.
                _mark_folder(folder, header)
            raise
        sizes = job.part_tokens()
        own = share.task.share(job.parts, sizes)
        parts = Parts(folder, WORK, NAME, own, share.task.share(sizes, sizes))
        listed, others = _listed_files(job, listing or {})
        others = share.task.share(others, [file.num_bytes for file in others])
        are_intact = all(file.is_intact(folder / file.path, is_listed=True) for file in others)
        parts.find(engine, listed if are_intact or not job.format.joined else {})
        if listing and are_intact and not parts.todo:
            progress(total := sum(sizes), total)
            if share.is_whole:
                say("the export is up to date")
            return listing
        if listing and not share.is_whole:
            raise FormatError(
                f"{str(folder)!r} is damaged; run the same hbpack export with --shard 0/1 to write what is damaged "
                "again"
            )
        _write_parts(job, parts, engine, progress)
        share.record({part.name: parts.finished[part.name] for part in own})
        return None

    def complete(self, engine: Engine, share: TaskShare, parts: Sequence[Mapping[str, FinishedPart]]) -> ExportListing:
        """See `Output`. Parts are not read again, but pieces that are joined."""
        job, folder, recorded = self._job, self.folder, merged(parts)
        finished = [recorded[part.name] for part in job.parts]
        facts, files = [part.facts for part in finished], [file for part in finished for file in part.files]
        if job.format.joined and not share.is_whole:  # Other tasks have written most of them, on their machines.
            _require_intact(job, files, share)
        sink = Sink(folder)
        for number, path in enumerate(job.format.joined):
            pieces = [part.files[number] for part in finished]
            if len(pieces) == 1 and not is_remote(folder):
                os.replace(folder / pieces[0].path, folder / path)
                sink.files.append(replace(pieces[0], path=path))
                continue
            with sink.file(path) as whole:
                for each in pieces:
                    with (folder / each.path).open("rb") as piece:
                        shutil.copyfileobj(piece, whole, _BLOCK)
        job.format.finish(job, facts, files, sink)
        kept = [] if job.format.joined else files
        listing: ExportListing = {
            "hbpack_version": __version__,
            **job.header,
            "num_rows": len(job.packs),
            "num_samples": int(job.row_samples().sum(dtype=np.int64)),
            "num_tokens": int(job.row_tokens().sum(dtype=np.int64)),
            "capacity": job.capacity,
            "parts": facts,
            "files": [json_values(replace(file, version=None)) for file in (*kept, *sink.files)],
        }
        write_json(folder / NAME, listing)
        if share.is_whole:
            say(f"exported {self.describe(listing)} ({self._watch})")
        return listing

    def describe(self, result: ExportListing) -> str:
        """See `Output`."""
        num_files, num_bytes = count_files(result)
        return (
            f"{counted(result['num_rows'], 'pack')}, {counted(result['num_samples'], 'sample')}, "
            f"{counted(result['num_tokens'], 'token')} to {result['format']}: {counted(num_files, 'file')}, "
            f"{format_bytes(num_bytes)}"
        )


def _listed_files(job: Job, listing: Mapping[str, Any]) -> tuple[dict[str, FinishedPart], list[WrittenFile]]:
    """Return the parts, by name, and the other files that the listing of a finished export vouches for."""
    try:
        files = [read_record(WrittenFile, item) for item in listing.get("files", [])]
    except ValueError:
        files = []  # Of another release, or changed: everything is written again.
    each = 0 if job.format.joined else 1
    listed = (
        FinishedPart(name=part.name, fingerprint=part.fingerprint, files=tuple(files[i : i + each]), facts=facts)
        for i, (part, facts) in enumerate(zip(job.parts, listing.get("parts", []), strict=False))
    )
    return {part.name: part for part in listed if files}, files[len(job.parts) * each :]


def _mark_folder(folder: Path, header: ExportHeader) -> None:
    """Mark a folder as this export's, should the run be killed."""
    if not (folder / WORK / NAME).exists():
        write_json(folder / WORK / NAME, header)


def _require_intact(job: Job, files: Sequence[WrittenFile], share: TaskShare) -> None:
    """Let the array start over, and raise FormatError, where a file is not as its task has written it."""
    wrong = next((file.path for file in files if not file.is_intact(job.folder / file.path)), None)
    if wrong is not None:
        share.start_over()
        _mark_folder(job.folder, job.header)
        raise FormatError(f"{str(job.folder / wrong)!r} is missing or damaged; run all tasks of the array again")


def _write_parts(job: Job, parts: Parts[Part], engine: Engine, progress: Progress) -> None:
    """Write the missing parts."""
    with job.format.preparing(job, parts.todo) if parts.todo else nullcontext() as job.prepared:
        _mark_folder(job.folder, job.header)
        parts.begin(progress)
        parts.make(engine, _Work(job))
