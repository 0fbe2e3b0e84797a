"""The export stage as a task of a job array: the parts of its share, and a record of them.

Each task checks its share of the set's shards, so all of them have been checked once the export is complete.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from packer_cli.engine.array import ArrayRecords, ArrayShare
from packer_cli.engine.base import Engine
from packer_cli.engine.local import LocalEngine
from packer_cli.engine.parts import Parts
from packer_cli.engine.progress import Progress
from packer_cli.errors import FormatError
from packer_cli.export.folder import NAME, WORK, read_json
from packer_cli.export.formats import load_format
from packer_cli.export.stage import (
    ExportResult,
    ExportWork,
    finish_export,
    listed_parts,
    mark_folder,
    open_job,
    part_tokens,
    write_parts,
)
from packer_cli.format.manifest import Manifest
from packer_cli.remote.names import as_path
from packer_cli.remote.path import is_remote
from packer_cli.shards.manifest import read_manifest


def export_share(
    header: dict[str, Any],
    manifest: Manifest,
    source: Path,
    folder: Path,
    engine: Engine,
    progress: Progress,
    share: ArrayShare,
) -> int | None:
    """Write the share of one task of the export that a header describes; the caller holds the folder.

    Returns the number of its parts; None if the export is complete, and these parts are intact.

    Raises:
        ConfigError: the task does not agree with the others.
        FormatError: the set is damaged; or parts of a complete export are.
    """
    is_complete = (folder / NAME).exists() and not share.has_begun
    if not is_complete:
        mark_folder(folder, header)
        share.join(
            {"the export": header["fingerprint"]}, {"source": str(source if is_remote(source) else source.absolute())}
        )
    shards = [info for group in manifest.groups if group.name in header["groups"] for info in group.shards]
    to_check = [*shards, *manifest.tokens]
    own_files = share.task.share(to_check, [info.num_bytes for info in to_check])
    try:
        job = open_job(source, folder, header, engine, manifest, {info.path for info in own_files})
    except FormatError:
        if not is_complete:
            share.start_over()  # The parts of the others may hold what is damaged.
            mark_folder(folder, header)
        raise
    sizes = part_tokens(job)
    own = share.task.share(job.parts, sizes)
    parts = Parts(folder, WORK, NAME, own, share.task.share(sizes, sizes))
    format = load_format(header["format"])
    parts.find(engine, {**listed_parts(format, job)[0], **share.recorded()})
    if is_complete:
        if parts.todo:
            raise FormatError(
                f"{str(folder)!r} is damaged; run the same hbpack export with --shard 0/1 to write what is damaged "
                "again"
            )
        return None
    if parts.todo:
        share.discard()
        parts.begin()
        write_parts(format, job, ExportWork(source, folder, header, job), parts, engine, progress)
    share.record({part.name: parts.finished[part.name] for part in own})
    return len(own)


def complete_export(folder: Path) -> ExportResult | None:
    """Finish an export of which all tasks of an array are done; the caller holds the folder.

    Raises:
        FormatError: the set has changed meanwhile.
    """
    records = ArrayRecords(folder / WORK)
    pin, recorded = records.pin(), records.parts()
    header = read_json(folder / WORK / NAME)
    if pin is None or recorded is None or header is None:
        return None
    source = as_path(pin.facts["source"])
    manifest = read_manifest(source)
    if manifest.fingerprint != header["set_fingerprint"]:
        raise FormatError(
            f"the packed set {str(source)!r} has changed since the export to {str(folder)!r} began; remove "
            f"{str(folder)!r}, and run hbpack export again"
        )
    engine = LocalEngine(1)
    job = open_job(source, folder, header, engine, manifest, to_check=())
    work = ExportWork(source, folder, header, job)
    return finish_export(job, work, header, engine, lambda done, total: None, recorded)
