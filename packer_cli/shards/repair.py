"""The search for damaged files of a packed set, and the writing of just these files again.

The manifest vouches for every other file, also for other numbers of GPUs (`packer_cli.commands.rebalance`), so a
repair replaces files one by one and leaves the manifest as it is.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa

from packer_cli.engine.local import Engine
from packer_cli.engine.progress import Progress
from packer_cli.errors import FormatError
from packer_cli.files import intact_or_none, link_file
from packer_cli.format.checksums import find_damage, inside, require_damage
from packer_cli.format.constants import PLAN_NAME
from packer_cli.format.entries import FileInfo, Generation
from packer_cli.format.manifest import Manifest
from packer_cli.format.schema import find_foreign, iterations_path
from packer_cli.format.versions import plan_base
from packer_cli.plan.core.types import Plan
from packer_cli.remote.local import open_source
from packer_cli.shards.own_store import open_own_store, store_of
from packer_cli.shards.plan_file import PlanHeader, read_plan, read_plan_header, read_schedules, write_plan
from packer_cli.shards.ranks import EpochColumns, write_epoch
from packer_cli.shards.write import ShardTask, ShardWriter
from packer_cli.tokens.index import INDEX_NAME

_ROW_BYTES = 30

PACK_AGAIN = "the same hbpack pack again"
PLAN_AGAIN = f"{PACK_AGAIN}, or hbpack plan and hbpack write"


def write_command(folder: Path) -> str:
    """Write the command that rewrites damaged files."""
    return f"hbpack write {shlex.quote(str(folder))}"


def what_writes_shards(folder: Path) -> str:
    """Write the command that makes damaged shards again; `hbpack write` needs the plan and the token store."""
    header = intact_or_none(read_plan_header, folder / PLAN_NAME)
    has_store = header is not None and (store_of(folder, header) / INDEX_NAME).exists()
    return write_command(folder) if has_store else PACK_AGAIN


@dataclass(frozen=True)
class SetFile:
    """A file that the manifest lists."""

    path: str
    kind: str
    """`shard`, `iterations`, `rank`, `schedules`, `plan`, `rejected` or `tokens`."""
    xxh3: str
    num_bytes: int | None = None
    fingerprint: str | None = None
    """The set's in the file's identity; None where it has none."""
    likely_bytes: int = 0
    """For progress."""


def set_files(folder: Path, manifest: Manifest) -> Iterator[SetFile]:
    """Yield every file of the set in a folder besides `hbpack.json` and what is one with the token store."""

    def listed(kind: str, info: FileInfo, fingerprint: str | None = None) -> SetFile:
        size = info.num_bytes
        return SetFile(info.path, kind, info.xxh3, num_bytes=size, fingerprint=fingerprint, likely_bytes=size)

    for shard in manifest.shards:
        yield listed("shard", shard, manifest.planned_fingerprint)
    for generation in manifest.generations:
        for epoch in generation.epochs:
            for path, xxh3 in epoch.files:
                kind = "iterations" if path == iterations_path(epoch.path) else "rank"
                size = _ROW_BYTES * epoch.num_iterations
                yield SetFile(path, kind, xxh3, fingerprint=generation.fingerprint, likely_bytes=size)
    yield listed("plan", manifest.plan)
    if manifest.rejected is not None:
        yield listed("rejected", manifest.rejected)
    for part in manifest.tokens:
        if not _is_same(folder / part.path, plan_base(folder) / part.path):
            yield listed("tokens", part)
    for generation in manifest.generations:
        if generation.schedules is not None:
            yield listed("schedules", generation.schedules)


def _is_same(path: Path, other: Path) -> bool:
    try:
        return path.samefile(other)
    except OSError:
        return False


def find_damaged(
    folder: Path, files: Sequence[SetFile], engine: Engine, progress: Progress | None = None
) -> dict[str, str]:
    """Name the fault of each damaged file, by path. Price: reading all files once."""
    sizes = [file.likely_bytes for file in files]
    found = engine.find_faults(lambda file: describe_damage(folder, file), files, sizes, progress)
    return {file.path: why for file, why in found}


def describe_damage(folder: Path, file: SetFile) -> str | None:
    """Name the fault of a file, and its owner where it is another's; return None where it is intact."""
    try:
        path = inside(folder, file.path)
    except ValueError as error:
        return str(error)
    why = find_damage(path, file.num_bytes, file.xxh3)
    if why is None or file.fingerprint is None or not path.exists():
        return why
    try:
        with open_source(path) as source:
            return find_foreign(pa.ipc.open_file(source).schema, file.fingerprint, file.path) or why
    except (OSError, pa.ArrowException) as error:
        require_damage(error)
        return why


def repair(folder: Path, manifest: Manifest, header: PlanHeader, damaged: Collection[str], engine: Engine) -> bool:
    """Write damaged files of a version again, but `rejected.jsonl`; whether each has its bytes again.

    Args:
        header: the plan's.

    Raises:
        InputError, FormatError: the plan or the token store, which they are made from, is damaged or gone.
    """
    files = [file for file in set_files(folder, manifest) if file.path in damaged]
    if any(file.kind == "schedules" for file in files):
        return False  # Nothing else holds them: the change of the number of GPUs has to be made again.
    plan, piece_loss = planned = read_plan(folder / manifest.plan.path, check=True)
    if manifest.plan.path in damaged:
        write_plan(folder / manifest.plan.path, plan, piece_loss, header)
    for file in files:
        if file.kind == "tokens":
            link_file(plan_base(folder) / file.path, folder / file.path)
    tasks = [task for task in shard_tasks(manifest) if task.name in damaged]
    if tasks:
        writer = ShardWriter(
            folder,
            header,
            planned,
            open_own_store(folder, header),
            index_only=manifest.config.write.index_only,
            tasks=tasks,  # Of a remote store, only what they need; the manifest has the checksums of the shards.
        )
        for _ in engine.run_writing(writer, tasks):
            pass
    for generation in manifest.generations:
        broken = [e for e, epoch in enumerate(generation.epochs) if any(path in damaged for path, _ in epoch.files)]
        dealt = generation_plan(folder, generation, plan) if broken else plan
        for e in broken:
            columns = EpochColumns(dealt, dealt.epochs[e], piece_loss)
            write_epoch(folder, generation.epochs[e].path, generation.fingerprint, columns, damaged)
    return all(describe_damage(folder, file) is None for file in files if file.kind != "rejected")


def shard_tasks(manifest: Manifest) -> list[ShardTask]:
    """List the shards with the packs of each."""
    return [
        ShardTask(shard.path, g, shard.first_pack, shard.num_packs, manifest.planned_fingerprint)
        for g, group in enumerate(manifest.groups)
        for shard in group.shards
    ]


def generation_plan(folder: Path, generation: Generation, plan: Plan) -> Plan:
    """Give a plan the schedules and GPUs of a generation.

    Raises:
        FormatError: the file that holds the schedules is damaged, or of another set.
    """
    schedules = plan.epochs
    if generation.schedules is not None:
        path = folder / generation.schedules.path
        schedules, fingerprint = read_schedules(path)
        if fingerprint != generation.fingerprint or len(schedules) != len(generation.epochs):
            raise FormatError(f"{str(path)!r} is of another set; run hbpack write, and then hbpack rebalance")
    return replace(plan, num_gpus=generation.num_gpus, epochs=schedules)
