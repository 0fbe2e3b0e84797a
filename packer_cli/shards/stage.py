"""The write stage: a plan and its token store to shards, rank manifests and `hbpack.json`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path

from packer_cli.engine.array import TaskShare
from packer_cli.engine.local import Engine
from packer_cli.engine.parts import Parts, find_listing
from packer_cli.engine.progress import Progress
from packer_cli.engine.sink import FileRange, FinishedPart
from packer_cli.errors import FormatError, InputError
from packer_cli.files import fingerprint, remove_folder, remove_temporaries
from packer_cli.format.constants import (
    FORMAT_VERSION,
    MANIFEST_NAME,
    PLAN_NAME,
    REJECTED_NAME,
    SHARD_MARKERS,
)
from packer_cli.format.entries import EpochInfo, GroupInfo, PartInfo, RankFile
from packer_cli.format.manifest import Manifest, SetConfig, WriteOptions
from packer_cli.format.schema import epoch_name, iterations_path, ranks_path
from packer_cli.plan.core.cost import pack_sums
from packer_cli.plan.core.types import PieceLoss, Plan, Schedule
from packer_cli.remote.names import relative_path
from packer_cli.shards.manifest import (
    describe_groups,
    file_info,
    read_manifest,
    shared_replicas,
    source_infos,
    write_manifest,
)
from packer_cli.shards.plan_file import PlanHeader, read_plan
from packer_cli.shards.ranks import EpochColumns, write_epoch
from packer_cli.shards.write import ShardTask, ShardWriter, lay_out
from packer_cli.tokens.index import read_index
from packer_cli.tokens.store import open_store
from packer_cli.version import __version__

BYTES_VERSION = 3
"""Part of the fingerprint; a release that writes other bytes of the same format raises it."""


def set_fingerprint(plan_fingerprint: str, options: WriteOptions) -> str:
    """Fingerprint of a packed data set."""
    index_only = ["index-only"] if options.index_only else []
    return fingerprint(plan_fingerprint, options.shard_size, FORMAT_VERSION, BYTES_VERSION, *index_only)


def is_of_plan(manifest: Manifest, plan_fingerprint: str) -> bool:
    """Whether a set was written from this plan; the plan's file itself may be damaged or missing."""
    return manifest.planned_fingerprint == set_fingerprint(plan_fingerprint, manifest.config.write)


class SetWriter:
    """Writes the plan in a folder out: the shards of each task, then the whole set.

    Shards of an earlier run of the same plan are kept, if their checksums hold.
    """

    def __init__(self, header: PlanHeader, options: WriteOptions, folder: Path, store: Path) -> None:
        """Read the plan, and cut its packs into shards.

        Args:
            header: the plan's.
            folder: of the plan and the set.
            store: the token store.
        """
        self._header, self._options, self._folder, self._store = header, options, folder, store
        self._planned = read_plan(folder / PLAN_NAME, check=True)
        self._index = read_index(store)
        self._fingerprint = set_fingerprint(header.fingerprint, options)
        plan, _ = self._planned
        pack_tokens = pack_sums(plan.pieces.length, plan.packs.offsets, plan.packs.pieces)
        token_bytes = self._index.token_type.byte_width
        self._tasks = lay_out(plan, pack_tokens, options.shard_size, token_bytes, self._fingerprint)
        self._sizes = [int(pack_tokens[t.first_pack : t.first_pack + t.num_packs].sum()) for t in self._tasks]
        """Tokens of each shard."""

    def write_share(self, engine: Engine, progress: Progress, share: TaskShare) -> None:
        """Write the shards of a share that are missing, and record all of it.

        The tasks of an array have checked the token store, or do so meanwhile; otherwise all parts of a remote one are
        fetched, which checks them. If no shard is missing, it is not opened.

        Args:
            progress: told tokens.
        """
        task = share.task
        tasks, sizes = task.share(self._tasks, self._sizes), task.share(self._sizes, self._sizes)
        parts = Parts(self._folder, SHARD_MARKERS, MANIFEST_NAME, tasks, sizes)
        parts.find(engine, listed_shards(self._folder))
        with parts.committing(progress) as commit:
            if parts.todo:
                writer = ShardWriter(
                    self._folder,
                    self._header,
                    self._planned,
                    open_store(self._store, self._index),
                    index_only=self._options.index_only,
                    tasks=None if share.is_whole else parts.todo,
                )
                with closing(engine.run_writing(writer, parts.todo)) as outcomes:
                    for _, shard in outcomes:
                        commit(shard)
        share.record({task.name: parts.finished[task.name] for task in tasks})

    def complete(self, finished: Mapping[str, FinishedPart]) -> Manifest:
        """Write all else, when all shards are written.

        The manifest goes before anything changes, and comes last: a folder without it is unfinished.

        Args:
            finished: the shards, by path; they are not read again.
        """
        parts: Parts[ShardTask] = Parts(self._folder, SHARD_MARKERS, MANIFEST_NAME, (), ())
        parts.begin()
        plan, piece_loss = self._planned
        epochs = write_epochs(self._folder, "ranks", 0, plan, plan.epochs, piece_loss, self._fingerprint)
        manifest = self._manifest(describe_groups(plan, piece_loss, self._tasks, finished), epochs)
        _remove_stale(self._folder, manifest)
        write_manifest(self._folder, manifest)
        return manifest

    def _manifest(self, groups: tuple[GroupInfo, ...], epochs: tuple[EpochInfo, ...]) -> Manifest:
        """Make the manifest, when all else is written."""
        (plan, _), header, index = self._planned, self._header, self._index
        store = relative_path(self._store, self._folder)
        parts = [
            PartInfo(
                path=f"{store}/{part.path}", num_bytes=part.num_bytes, xxh3=part.xxh3, num_samples=part.num_samples
            )
            for part in index.parts
        ]
        has_rejected = (self._folder / REJECTED_NAME).exists()
        return Manifest(
            hbpack_version=__version__,
            fingerprint=self._fingerprint,
            seed=header.config.seed,
            num_gpus=plan.num_gpus,
            groups=groups,
            replicas=shared_replicas(plan),
            lockstep=plan.lockstep,
            epochs=epochs,
            plan=file_info(self._folder, PLAN_NAME),
            rejected=file_info(self._folder, REJECTED_NAME) if has_rejected else None,
            tokens=tuple(parts) if self._options.index_only else (),
            tokenizer=index.tokenizer,
            sources=source_infos(index),
            counts=header.counts,
            metrics=header.metrics,
            config=SetConfig(
                tokens=index.options,
                plan=header.config.decisions(),
                group_choice=header.group_choice,
                write=self._options,
            ),
            library_versions=index.library_versions,
            tokens_fingerprint=index.fingerprint,
        )


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
    """List the shards that the manifest vouches for, by path. A run that replaces shards moves the manifest to the
    work folder."""
    try:
        manifest = read_manifest(find_listing(folder, SHARD_MARKERS, MANIFEST_NAME).parent)
    except (InputError, FormatError):
        return {}
    files = [FileRange(path=shard.path, num_bytes=shard.num_bytes, xxh3=shard.xxh3) for shard in manifest.shards]
    return {file.path: FinishedPart(fingerprint=manifest.planned_fingerprint, files=(file,)) for file in files}


def _remove_stale(folder: Path, manifest: Manifest) -> None:
    """Remove what an earlier, different plan left beside the set of this manifest."""
    remove_temporaries(folder)
    for path in folder.glob("ranks/rebalanced-*"):
        remove_folder(path)
    known = {shard.path for shard in manifest.shards} | {path for each in manifest.epochs for path, _ in each.files}
    for path in [*folder.glob("shards/*/shard-*.arrow"), *folder.glob("ranks/epoch-*/*.arrow")]:
        if str(path.relative_to(folder)) not in known:
            path.unlink()
    for path in [*folder.glob("shards/*"), *folder.glob("ranks/*")]:
        if path.is_dir() and not any(path.iterdir()):
            path.rmdir()
