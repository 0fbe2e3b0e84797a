"""Writes an export: parts on threads, each with a marker that holds its checksums; the manifest comes last."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import packer_cli
from packer_cli.engine.local import LocalEngine
from packer_cli.errors import ConfigError, RunError
from packer_cli.export.folder import NAME, check_folder, read_json
from packer_cli.export.formats import ORDERS, load_format
from packer_cli.export.job import WORK, FileRange, Format, Job, Part, Sink, cut_parts
from packer_cli.export.order import check_one_capacity, choose_groups, packs_by_id, packs_by_use
from packer_cli.export.packed import PackedSet
from packer_cli.files import (
    Committer,
    fingerprint,
    lock_folder,
    remove_temporaries,
    write_json,
)
from packer_cli.format.manifest import Manifest
from packer_cli.shards.manifest import read_manifest
from packer_cli.sizes import parse_bytes

EXPORT_VERSION = 2
"""Part of the fingerprint; a release that writes other bytes raises it."""

_LEAST_SHARD = 65_536

Progress = Callable[[int, int], None]
"""(tokens done, tokens in all)"""


@dataclass(frozen=True, kw_only=True)
class ExportOptions:
    """The options that, with the packed set, decide the bytes of an export."""

    format: str
    groups: str | None = None
    epoch: int | None = None
    """None: the set's first epoch, which is above 0 if an earlier one was over when the set was rebalanced."""
    order: str = "use"
    shard_size: int | None = None
    """Bytes; None is the format's default."""


def parse_shard_size(text: str | None) -> int | None:
    """`--shard-size` in bytes.

    Raises:
        ConfigError
    """
    if text is None:
        return None
    try:
        size = parse_bytes(str(text))
    except ValueError as error:
        raise ConfigError(f"--shard-size: {error}") from None
    if size < _LEAST_SHARD:
        raise ConfigError(f"--shard-size must be at least {_LEAST_SHARD}, got {size}")
    return size


@dataclass(frozen=True, kw_only=True)
class ExportResult:
    """The result of an export."""

    num_rows: int
    num_samples: int
    num_tokens: int
    num_files: int
    num_bytes: int
    is_new: bool
    """False if an earlier run had finished the same export, and it is intact."""


def export_set(
    options: ExportOptions, source: Path, folder: Path, engine: LocalEngine, progress: Progress
) -> ExportResult:
    """Write the packed set `source` to `folder` in another format.

    An export that was killed goes on where it stopped: parts are kept whose checksums hold. Memory: 8 bytes a row, 10
    bytes a pack, and a few million tokens a thread.

    Raises:
        InputError, FormatError: `source` holds no packed set, or a damaged one.
        ConfigError: an option does not fit the set or the format.
        OutputError: `folder` holds something else.
    """
    format = load_format(options.format)
    manifest = read_manifest(source)
    groups = tuple(choose_groups(manifest, options.groups))
    shard_size = options.shard_size or format.shard_size
    if options.order not in ORDERS:
        raise ConfigError(f"--order: unknown order {options.order!r}; known: {', '.join(ORDERS)}")
    if format.most_shard_size is not None and shard_size > format.most_shard_size:
        raise ConfigError(
            f"--shard-size must be at most {format.most_shard_size} for {options.format}, got {shard_size}"
        )
    if format.needs_one_capacity:
        check_one_capacity(options.format, manifest, groups)
    first = manifest.first_epoch if options.epoch is None else options.epoch
    epoch = first if options.order == "use" else None
    header: dict[str, Any] = {
        "export_version": EXPORT_VERSION,
        "format": options.format,
        "set_fingerprint": manifest.fingerprint,
        "groups": [manifest.groups[group].name for group in groups],
        "order": options.order,
        "epoch": epoch,
        "shard_size": shard_size,
    }
    header["fingerprint"] = fingerprint(header)
    check_folder(folder, header)
    if epoch is None:
        packs = packs_by_id(manifest, list(groups))
    else:
        packs = packs_by_use(source, manifest, list(groups), epoch)
    if not len(packs):
        raise ConfigError(f"--groups: {', '.join(header['groups'])} hold no packs; choose groups that do")
    packed = PackedSet(source, manifest, groups, engine)
    job = _job(format, folder, packed, manifest, groups, packs, shard_size)
    try:
        with lock_folder(folder):
            return _run(format, job, header, engine, progress)
    except BlockingIOError:
        raise RunError(
            f"output folder {str(folder)!r}: another hbpack run writes to it; wait until that has ended, "
            "or name another folder"
        ) from None


def _job(
    format: Format,
    folder: Path,
    packed: PackedSet,
    manifest: Manifest,
    groups: tuple[int, ...],
    packs: np.ndarray,
    shard_size: int,
) -> Job:
    num_tokens, num_samples = packed.num_tokens[packs].astype(np.int64), packed.num_samples[packs].astype(np.int64)
    parts = cut_parts(format.row_bytes(num_tokens, num_samples), num_tokens, shard_size)
    return Job(
        folder=folder,
        packed=packed,
        manifest=manifest,
        groups=groups,
        packs=packs,
        shard_size=shard_size,
        parts=parts,
    )


def _run(format: Format, job: Job, header: dict[str, Any], engine: LocalEngine, progress: Progress) -> ExportResult:
    work = job.folder / WORK
    finished = read_json(job.folder / NAME)
    done_before = _reopen(format, job, header, finished, engine)
    tokens = job.row_tokens()
    sizes = [int(tokens[part.first : part.stop].sum(dtype=np.int64)) for part in job.parts]
    done = sum(sizes[number] for number in done_before)
    progress(done, sum(sizes))
    todo = [part for part in job.parts if part.number not in done_before]
    if finished and not todo:
        files = [_file_range(item) for item in finished["files"]]
        of_parts = sum(len(value["ranges"]) for value in done_before.values())
        if all(range_.is_intact(job.folder / range_.path) for range_ in files[of_parts:]):
            shutil.rmtree(work, ignore_errors=True)
            return _result(job, files, is_new=False)
    (job.folder / NAME).unlink(missing_ok=True)
    write_json(work / NAME, header)
    for path, num_bytes in format.shared_files(job).items():
        _make_room(job.folder, path, num_bytes)
    found = dict(done_before)

    def write(part: Part) -> tuple[dict[str, Any], list[FileRange], Path | None]:
        sink = Sink(job.folder)
        return format.write_part(job, part, sink), sink.ranges, sink.temporary

    with Committer() as committer:
        for i, (info, ranges, temporary) in engine.run_threads(write, todo):
            number = todo[i].number
            found[number] = {"info": info, "ranges": [vars(range_) for range_ in ranges]}
            marker = _marker(job.folder, number)
            value = {"fingerprint": header["fingerprint"], "part": number, **found[number]}
            if temporary:
                committer.add(temporary, job.folder / ranges[0].path, marker, value)
            else:
                write_json(marker, value, sync=False)
            done += sizes[number]
            progress(done, sum(sizes))
    for path in format.shared_files(job):
        if not (job.folder / path).exists():
            os.replace(work / path, job.folder / path)
    results = [found[part.number] for part in job.parts]
    written = [_file_range(item) for result in results for item in result["ranges"]]
    sink = Sink(job.folder)
    format.finish(job, [result["info"] for result in results], written, sink)
    files = [*written, *sink.ranges]
    remove_temporaries(job.folder)
    result = _result(job, files, is_new=True)
    totals = {"num_rows": result.num_rows, "num_samples": result.num_samples, "num_tokens": result.num_tokens}
    parts = [item["info"] for item in results]
    text = {"hbpack_version": packer_cli.__version__, **header, **totals, "parts": parts}
    write_json(job.folder / NAME, {**text, "files": [vars(range_) for range_ in files]})
    shutil.rmtree(work, ignore_errors=True)
    return result


def _result(job: Job, files: list[FileRange], *, is_new: bool) -> ExportResult:
    return ExportResult(
        num_rows=len(job.packs),
        num_samples=int(job.row_samples().sum(dtype=np.int64)),
        num_tokens=int(job.row_tokens().sum(dtype=np.int64)),
        num_files=len({range_.path for range_ in files}),
        num_bytes=sum(range_.num_bytes for range_ in files),
        is_new=is_new,
    )


def _reopen(
    format: Format, job: Job, header: dict[str, Any], finished: dict[str, Any] | None, engine: LocalEngine
) -> dict[int, dict[str, Any]]:
    """The intact parts of an earlier run of the same export, by number. If some are missing, marks the rest."""
    work = job.folder / WORK
    shared = set(format.shared_files(job))
    candidates: dict[int, Any] = {}
    if finished:
        ranges = iter(finished["files"])
        for part, info in zip(job.parts, finished["parts"], strict=True):
            own = [next(ranges) for _ in range(max(1, len(shared)))]
            candidates[part.number] = {"info": info, "ranges": own}
    else:
        for part in job.parts:
            value = read_json(_marker(job.folder, part.number))
            if (
                value
                and value.get("fingerprint") == header["fingerprint"]
                and value.get("part") == part.number
                and "ranges" in value
            ):
                candidates[part.number] = {"info": value["info"], "ranges": value["ranges"]}
    numbers = list(candidates)

    def check(number: int) -> bool:
        ranges = [_file_range(item) for item in candidates[number]["ranges"]]
        return all(range_.is_intact(_where(job.folder, work, range_.path)) for range_ in ranges)

    found = {numbers[i]: candidates[numbers[i]] for i, intact in engine.run_threads(check, numbers) if intact}
    if finished and len(found) < len(job.parts):
        for number, value in found.items():
            marker = {"fingerprint": header["fingerprint"], "part": number, **value}
            write_json(_marker(job.folder, number), marker, sync=False)
    return found


def _where(folder: Path, work: Path, path: str) -> Path:
    """A file under its final name, or its path while it is being written."""
    return folder / path if (folder / path).exists() else work / path


def _make_room(folder: Path, path: str, num_bytes: int) -> None:
    """Create a shared file of this size, keeping what an earlier run wrote to it."""
    work = folder / WORK / path
    work.parent.mkdir(parents=True, exist_ok=True)
    if (folder / path).exists():
        os.replace(folder / path, work)
    with work.open("ab") as file:
        file.truncate(num_bytes)


def _marker(folder: Path, number: int) -> Path:
    return folder / WORK / f"part-{number:05d}.json"


def _file_range(item: dict[str, Any]) -> FileRange:
    return FileRange(**item)
