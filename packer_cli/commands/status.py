"""The status stage: finished and missing stages of an output, and the tasks of a job array that make the rest."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from itertools import starmap
from pathlib import Path
from typing import Literal

from packer_cli.commands.arguments import StrPath
from packer_cli.commands.output_folder import APPEND_MARKER, current_header, require_sound
from packer_cli.commands.write import describe_set
from packer_cli.config import validate
from packer_cli.config.set_options import StatusConfig
from packer_cli.engine.array import ArrayRecords, Pin, array_expression
from packer_cli.errors import FormatError, HbpackError, InputError
from packer_cli.export import listing as export_listing
from packer_cli.folder_lock import Holders, find_holders
from packer_cli.format.constants import MANIFEST_NAME, PLAN_NAME, SHARD_MARKERS, VALIDATION
from packer_cli.format.records import Hidden, in_json
from packer_cli.format.versions import set_at, version_folders
from packer_cli.remote.path import as_path
from packer_cli.shards.manifest import is_of_plan, read_manifest
from packer_cli.shards.own_store import store_of
from packer_cli.shards.plan_file import PlanHeader
from packer_cli.sizes import counted, format_bytes
from packer_cli.tokens.choices import not_read
from packer_cli.tokens.index import INDEX_NAME, TOKENS, WORK, read_index

StageName = Literal["tokens", "plan", "shards", "export"]
State = Literal["complete", "unfinished", "missing"]


@dataclass(frozen=True, kw_only=True)
class Running:
    """A process that writes to the folder."""

    host: str
    """Name of its machine."""
    pid: int
    """Number of the process."""
    task: int | None = None
    """Number of the task in a job array, counted from 0."""


@dataclass(frozen=True, kw_only=True)
class ArrayStatus:
    """The tasks of a job array that has not made its output yet. Tasks are counted from 0."""

    pin: Hidden[Pin]
    """Facts that all tasks agree on."""
    done: tuple[int, ...]
    """Tasks that are done."""
    running: tuple[Running, ...]
    """Tasks that run now, as far as locks tell."""
    num_tasks: int
    """Number of tasks of the array."""
    missing: list[int]
    """The tasks that are not done and, as far as locks tell, do not run."""
    expression: str
    """The ids of the missing tasks, as Slurm's `--array` takes them, such as `3,7-9`."""


@dataclass(frozen=True)
class StageStatus:
    """State of one stage."""

    stage: StageName
    """Name of the stage."""
    state: State
    """Whether the stage is complete, unfinished or missing."""
    summary: str
    """The state, for people."""
    array: ArrayStatus | None = None
    """Tasks of the job array that makes the stage."""


@dataclass(frozen=True, kw_only=True)
class Status:
    """State of an output."""

    stages: tuple[StageStatus, ...]
    """The stages in their order, or the one that was asked for."""
    running: Running | None
    """A run that has the folder to itself, if one is known to run."""

    @property
    @in_json
    def complete(self) -> bool:
        """Whether every stage is complete."""
        return all(stage.state == "complete" for stage in self.stages)


def status(path: StrPath, *, stage: Literal["tokens", "plan", "shards"] | None = None) -> Status:
    """Say what is done of an output and what is missing, as `hbpack status` does.

    Price: reading the index, the plan's header and the manifest; damage is left to `verify`.

    Args:
        path: folder that a command or function has written.
        stage: the only stage to look at; None for all.

    Raises:
        HbpackError: the folder holds no output of hbpack, or there is no such stage.
    """
    folder, stage = as_path(path), validate(StatusConfig, {"stage": stage}).stage
    if not folder.is_dir():
        raise InputError(f"{str(folder)!r} is not a folder; name the output of an hbpack command")
    holders = find_holders(folder)
    alone = next((Running(host=each.host, pid=each.pid) for task, each in holders.items() if task is None), None)
    if (folder / export_listing.NAME).exists() or (folder / export_listing.WORK).exists():
        return Status(stages=(_export(folder, holders),), running=alone)
    traces = (TOKENS, PLAN_NAME, MANIFEST_NAME)
    if not holders and not any((folder / name).exists() for name in traces):
        raise InputError(f"{str(folder)!r} holds no output of hbpack; name the folder given as --output")
    header = current_header(folder)
    store = folder / TOKENS if header is None else store_of(folder, header)
    again = "hbpack append" if (folder / APPEND_MARKER).exists() else "hbpack tokenize or pack"
    found = {
        "tokens": _tokens(store, (folder / MANIFEST_NAME).exists(), holders, again),
        "plan": _plan(folder, header, store),
        "shards": _shards(folder, header, holders),
    }
    stages = (each for name, each in found.items() if stage in (None, name))
    return Status(stages=tuple(stages), running=alone)


def _of_array(name: StageName, work: Path, stage: str, holders: Holders, parts: str) -> StageStatus | None:
    """Describe the work of an array's tasks; return None if no array makes the output."""
    records = ArrayRecords(work)
    pin = records.pin()
    if pin is None:
        return None
    done = records.done()
    running = tuple(
        Running(host=each.host, pid=each.pid, task=task.index)
        for task, each in holders.items()
        if task and task.stage == stage and task.index not in done
    )
    missing = sorted({*range(pin.num_tasks)} - {*done, *(each.task for each in running)})
    array = ArrayStatus(
        pin=pin,
        done=tuple(done),
        running=running,
        num_tasks=pin.num_tasks,
        missing=missing,
        expression=array_expression(pin, missing),
    )
    counts = [f"{len(done):,} of {counted(pin.num_tasks, 'task')} done"]
    others = (("running", len(running)), ("missing", len(missing)))
    counts += [f"{number:,} {what}" for what, number in others if number]
    return StageStatus(name, "unfinished", f"{', '.join(counts)}; {parts} written", array=array)


def _tokens(store: Path, is_packed: bool, holders: Holders, again: str) -> StageStatus:
    num_parts = counted(sum(1 for _ in store.glob("part-*.arrow")), "part")
    if (array := _of_array("tokens", store / WORK, "tokenize", holders, num_parts)) is not None:
        return array
    is_begun, has_earlier = (store / WORK).exists(), (store / INDEX_NAME).exists()
    if is_begun:
        summary = f"{num_parts} written; run the same {again} again"
        return StageStatus("tokens", "unfinished", summary + "; the earlier store holds until then" * has_earlier)
    if has_earlier:
        try:
            index = read_index(store)
        except HbpackError as error:
            return StageStatus("tokens", "missing", str(error))
        summary = (
            f"{counted(index.total('num_samples'), index.unit)}, {counted(index.total('num_tokens'), 'token')}, "
            f"{index.total('num_rejected'):,} rejected; {counted(len(index.parts), 'part')}"
        )
        return StageStatus("tokens", "complete", "; ".join(filter(None, (summary, not_read(index)))))
    if is_packed:
        return StageStatus("tokens", "complete", "removed after the shards were written")
    return StageStatus("tokens", "missing", "run hbpack tokenize")


def _plan(folder: Path, header: PlanHeader | None, store: Path) -> StageStatus:
    if header is None:
        return StageStatus("plan", "missing", "run hbpack plan")
    try:
        require_sound(folder, header)
    except FormatError as error:
        return StageStatus("plan", "missing", str(error))
    with suppress(HbpackError):  # Where the store cannot be read, nothing tells otherwise.
        if read_index(store).fingerprint != header.store_fingerprint:
            why = "the token store has changed since it was made"
            return StageStatus("plan", "missing", f"{why}; run hbpack plan again")
    overall = header.metrics.overall
    counts = (overall.num_packs, "pack"), (overall.num_steps, "step"), (header.config.gpus, "GPU")
    return StageStatus("plan", "complete", ", ".join(starmap(counted, counts)))


def _shards(folder: Path, header: PlanHeader | None, holders: Holders) -> StageStatus:
    """Describe the version of the plan that is there: complete, or the one that is being written."""
    manifest, aside, fault = None, "", ""
    try:
        home = set_at(folder)
        manifest = read_manifest(home)
        if manifest.planned.sets_aside:
            counts = read_manifest(home / VALIDATION).counts
            aside = f"; {counted(counts.samples, counts.unit)} for validation"
    except HbpackError as error:
        fault = str(error) if manifest or not isinstance(error, InputError) else ""
        manifest = None
    if manifest is not None and (header is None or is_of_plan(manifest, header.fingerprint)):
        return StageStatus("shards", "complete", describe_set(manifest) + aside)
    for home in version_folders(folder):
        of_home = current_header(home)
        if header is None or of_home is None or of_home.fingerprint != header.fingerprint:
            continue
        num_written = counted(sum(1 for _ in home.glob("shards/*/shard-*.arrow")), "shard")
        if (array := _of_array("shards", home / SHARD_MARKERS, "write", holders, num_written)) is not None:
            return array
        if not (home / MANIFEST_NAME).exists() and (home / SHARD_MARKERS).exists():
            return StageStatus("shards", "unfinished", f"{num_written} written; run hbpack write again")
    earlier = "" if manifest is None else "of an earlier plan, and holds until then; "
    return StageStatus("shards", "missing", fault or f"{earlier}run hbpack write")


def _export(folder: Path, holders: Holders) -> StageStatus:
    num_parts = counted(sum(1 for _ in (folder / export_listing.WORK).glob("part-*.json")), "part")
    if (array := _of_array("export", folder / export_listing.WORK, "export", holders, num_parts)) is not None:
        return array
    export = export_listing.read_listing(folder)
    if export is None:
        return StageStatus("export", "unfinished", "run the same hbpack export again")
    size = format_bytes(sum(file["num_bytes"] for file in export["files"]))
    packs, tokens = counted(export["num_rows"], "pack"), counted(export["num_tokens"], "token")
    return StageStatus("export", "complete", f"{packs} and {tokens} to {export['format']}, {size}")
