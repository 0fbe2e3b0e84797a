"""The write stage: a plan and its token store to shards, rank manifests and `hbpack.json`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from packer_cli.engine.array import ArrayShare
from packer_cli.engine.base import Engine
from packer_cli.engine.parts import Parts, find_listing
from packer_cli.engine.progress import Progress
from packer_cli.engine.sink import FileRange, FinishedPart, Written
from packer_cli.errors import FormatError, InputError
from packer_cli.files import fingerprint, remove_folder, remove_temporaries
from packer_cli.format.constants import FORMAT_VERSION, MANIFEST_NAME, PLAN_NAME, SHARD_MARKERS
from packer_cli.format.entries import EpochInfo, RankFile
from packer_cli.format.manifest import Manifest, WriteOptions
from packer_cli.format.schema import epoch_name, iterations_path, ranks_path
from packer_cli.plan.core.cost import pack_sums
from packer_cli.plan.core.types import PieceLoss, Plan, Schedule
from packer_cli.remote.names import relative_path
from packer_cli.shards.manifest import describe_groups, make_manifest, read_manifest, token_parts, write_manifest
from packer_cli.shards.plan_file import PlanHeader, read_plan
from packer_cli.shards.ranks import EpochColumns, write_epoch
from packer_cli.shards.write import ShardTask, ShardWriter, lay_out
from packer_cli.tokens.index import StoreIndex, read_index
from packer_cli.tokens.store import TokenStore

BYTES_VERSION = 3
"""Part of the fingerprint; a release that writes other bytes of the same format raises it."""


def set_fingerprint(plan_fingerprint: str, options: WriteOptions) -> str:
    """Fingerprint of a packed data set."""
    index_only = ["index-only"] if options.index_only else []
    return fingerprint(plan_fingerprint, options.shard_size, FORMAT_VERSION, BYTES_VERSION, *index_only)


def is_of_plan(manifest: Manifest, plan_fingerprint: str) -> bool:
    """Whether a set was written from this plan; the plan's file itself may be damaged or missing."""
    return manifest.planned_fingerprint == set_fingerprint(plan_fingerprint, manifest.config.write)


class SetLayout(NamedTuple):
    """What the files of a planned set will hold."""

    plan: Plan
    piece_loss: PieceLoss
    store: StoreIndex
    tasks: list[ShardTask]
    num_tokens: list[int]
    """Of each shard."""


def lay_out_set(header: PlanHeader, options: WriteOptions, folder: Path, store: Path) -> SetLayout:
    """Read the plan in `folder`, and cut its packs into shards.

    Args:
        header: the plan's.
    """
    plan, piece_loss = read_plan(folder / PLAN_NAME, check=True)
    index = read_index(store)
    own_fingerprint = set_fingerprint(header.fingerprint, options)
    pack_tokens = pack_sums(plan.pieces.length, plan.packs.offsets, plan.packs.pieces)
    tasks = lay_out(plan, pack_tokens, options.shard_size, index.token_type.byte_width, own_fingerprint)
    sizes = [int(pack_tokens[t.first_pack : t.first_pack + t.num_packs].sum()) for t in tasks]
    return SetLayout(plan, piece_loss, index, tasks, sizes)


def write_set(
    header: PlanHeader,
    options: WriteOptions,
    folder: Path,
    store: Path,
    engine: Engine,
    progress: Progress,
    recorded: Mapping[str, FinishedPart] | None = None,
) -> Manifest:
    """Write the plan in `folder` out; shards of an earlier run of the same plan are kept, if their checksums hold.

    The manifest goes first and comes last: a folder without it is unfinished.

    Args:
        header: the plan's.
        progress: told tokens.
        recorded: the shards that the tasks of an array wrote, by path; they are not read again, and their records
            stay.
    """
    layout = lay_out_set(header, options, folder, store)
    plan, piece_loss, index, tasks, sizes = layout
    parts = Parts(folder, SHARD_MARKERS, MANIFEST_NAME, tasks, sizes)
    if recorded is None:
        parts.find(engine, listed_shards(folder))
    else:
        parts.trust(recorded)
    parts.begin()
    own_fingerprint = set_fingerprint(header.fingerprint, options)
    with parts.committing(progress) as commit:
        write_shards(layout, header, options, parts, folder, store, engine, commit)
        epochs = write_epochs(folder, "ranks", 0, plan, plan.epochs, piece_loss, own_fingerprint)
    tokens = token_parts(index, relative_path(store, folder)) if options.index_only else ()
    groups = describe_groups(plan, piece_loss, tasks, parts.finished)
    manifest = make_manifest(folder, plan, header, index, options, own_fingerprint, groups, epochs, tokens)
    _remove_stale(folder, epochs, tasks)
    write_manifest(folder, manifest)
    if recorded is None:
        parts.close()
    return manifest


def write_shards(
    layout: SetLayout,
    header: PlanHeader,
    options: WriteOptions,
    parts: Parts[ShardTask],
    folder: Path,
    store: Path,
    engine: Engine,
    commit: Callable[[Written], FinishedPart],
    *,
    is_checked: bool = False,
) -> None:
    """Write the shards that are missing. Without any, the token store is not opened.

    Args:
        is_checked: whether the parts of a remote store have been checked; otherwise all are fetched, which does so.
    """
    if not parts.todo:
        return
    writer = ShardWriter(
        folder,
        header,
        (layout.plan, layout.piece_loss),
        TokenStore(store, layout.store),
        index_only=options.index_only,
        tasks=parts.todo if is_checked else None,
    )
    with closing(engine.run_writing(writer, parts.todo)) as outcomes:
        for _, shard in outcomes:
            commit(shard)


def write_epochs(
    folder: Path,
    path: str,
    first_epoch: int,
    plan: Plan,
    schedules: Sequence[Schedule],
    piece_loss: PieceLoss,
    own_fingerprint: str,
) -> tuple[EpochInfo, ...]:
    """Write the rank manifests of a generation below `path`; what the manifest says of each epoch."""
    epochs = []
    for number, schedule in enumerate(schedules, first_epoch):
        name = f"{path}/{epoch_name(number)}"
        columns = EpochColumns(plan, schedule, piece_loss)
        xxh3 = write_epoch(folder, name, own_fingerprint, columns)
        ranks = [RankFile(first=a, last=b, xxh3=xxh3[ranks_path(name, a, b)]) for a, b in columns.ranks]
        epochs.append(
            EpochInfo(
                path=name,
                num_iterations=schedule.num_iterations,
                num_steps=schedule.num_steps,
                iterations_xxh3=xxh3[iterations_path(name)],
                ranks=tuple(ranks),
            )
        )
    return tuple(epochs)


def listed_shards(folder: Path) -> dict[str, FinishedPart]:
    """The shards that the manifest vouches for, by path. A run that replaces shards moves it to the work folder."""
    try:
        manifest = read_manifest(find_listing(folder, SHARD_MARKERS, MANIFEST_NAME).parent)
    except (InputError, FormatError):
        return {}
    files = [FileRange(path=shard.path, num_bytes=shard.num_bytes, xxh3=shard.xxh3) for shard in manifest.shards]
    return {file.path: FinishedPart(fingerprint=manifest.planned_fingerprint, files=(file,)) for file in files}


def _remove_stale(folder: Path, epochs: Sequence[EpochInfo], shards: Sequence[ShardTask]) -> None:
    """Remove what an earlier, different plan left."""
    remove_temporaries(folder)
    for path in folder.glob("ranks/rebalanced-*"):
        remove_folder(path)
    known = {*(shard.path for shard in shards), *(path for epoch in epochs for path, _ in epoch.files)}
    for path in [*folder.glob("shards/*/shard-*.arrow"), *folder.glob("ranks/epoch-*/*.arrow")]:
        if str(path.relative_to(folder)) not in known:
            path.unlink()
    for path in [*folder.glob("shards/*"), *folder.glob("ranks/*")]:
        if path.is_dir() and not any(path.iterdir()):
            path.rmdir()


def write_share(
    header: PlanHeader,
    options: WriteOptions,
    folder: Path,
    store: Path,
    engine: Engine,
    progress: Progress,
    share: ArrayShare,
) -> int:
    """Write the share of one task, and record it; see `packer_cli.shards.stage.write_set`, which makes the rest.

    The tasks of the array have checked the token store, or do so meanwhile.

    Returns the number of its shards.
    """
    layout = lay_out_set(header, options, folder, store)
    tasks = share.task.share(layout.tasks, layout.num_tokens)
    sizes = share.task.share(layout.num_tokens, layout.num_tokens)
    parts = Parts(folder, SHARD_MARKERS, MANIFEST_NAME, tasks, sizes)
    parts.find(engine, {**listed_shards(folder), **share.recorded()})
    if parts.todo:
        share.discard()
    with parts.committing(progress) as commit:
        write_shards(layout, header, options, parts, folder, store, engine, commit, is_checked=True)
    share.record({task.name: parts.finished[task.name] for task in tasks})
    return len(tasks)
