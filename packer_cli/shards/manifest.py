"""`hbpack.json`: what it says of a set, reading it, and the write stage, which makes the set of a plan and its token
store: shards, rank manifests and `hbpack.json`.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from packer_cli.engine.array import TaskShare
from packer_cli.engine.local import Engine
from packer_cli.engine.output import Parts
from packer_cli.engine.progress import Progress
from packer_cli.engine.sink import FinishedPart, WrittenFile
from packer_cli.errors import FormatError, InputError
from packer_cli.files import atomic_file, fingerprint, intact_or_none, link_file, remove_folder
from packer_cli.format.checksums import file_checksum, require_damage
from packer_cli.format.constants import (
    FORMAT_VERSION,
    MANIFEST_NAME,
    PLAN_NAME,
    REJECTED_NAME,
    SHARD_MARKERS,
    STORE_COPY,
)
from packer_cli.format.entries import EpochInfo, FileInfo, GroupInfo, PartInfo, Replicas, ShardInfo
from packer_cli.format.manifest import Manifest, SetConfig, WriteOptions, manifest_bytes, parse_manifest
from packer_cli.format.ragged import owners
from packer_cli.format.schema import epoch_name
from packer_cli.format.versions import is_in_version
from packer_cli.plan.core.cost import pack_sums
from packer_cli.plan.core.types import PieceLoss, Plan
from packer_cli.remote.path import is_remote
from packer_cli.shards.plan_file import PlanHeader
from packer_cli.shards.ranks import EpochColumns, write_epoch
from packer_cli.shards.write import ShardTask, ShardWriter, lay_out
from packer_cli.tokens.accounts import inputs_of
from packer_cli.tokens.index import INDEX_NAME, TOKENS, StoreIndex
from packer_cli.tokens.store import open_store
from packer_cli.version import __version__

REMEDY = "run hbpack write, which rewrites it"


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write `hbpack.json` atomically, with its checksum."""
    with atomic_file(folder / MANIFEST_NAME) as file:
        file.write(manifest_bytes(manifest))


def read_manifest(folder: Path) -> Manifest:
    """Read and check `hbpack.json`.

    Raises:
        InputError: the folder holds no finished packed data set.
        FormatError: the manifest is damaged, or of another version.
    """
    file = folder / MANIFEST_NAME
    try:
        data = file.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        raise InputError(f"{str(folder)!r} holds no packed data set (no {MANIFEST_NAME}); {_next(folder)}") from None
    except OSError as error:
        require_damage(error)
        raise FormatError(f"{str(file)!r} cannot be read ({error.strerror}); {REMEDY}") from None
    return parse_manifest(data, str(file), REMEDY)


def _next(folder: Path) -> str:
    """Write the command that makes a packed set of a folder that is not one, or leads to the set around it."""
    if is_remote(folder):
        return "check the address"
    while is_in_version(folder):
        folder = folder.parent
    folder, is_store = (folder.parent, True) if (folder / INDEX_NAME).exists() else (folder, False)
    name = shlex.quote(str(folder))
    if is_store and (folder / MANIFEST_NAME).exists():
        return f"name {str(folder)!r}, whose token store it is"
    if (folder / PLAN_NAME).exists():
        return f"run hbpack write {name}"
    if is_store or (folder / TOKENS / INDEX_NAME).exists():
        return f"run hbpack plan {name} --groups GROUPS --gpus N, then hbpack write {name}"
    return "run hbpack pack"


def describe_groups(
    plan: Plan, piece_loss: PieceLoss, shards: Sequence[ShardTask], finished: Mapping[str, FinishedPart]
) -> tuple[GroupInfo, ...]:
    """Describe for the manifest the groups, whose shards are written; `finished` has the shards by path."""
    packs = plan.packs
    figures = {
        "num_packs": np.ones(len(packs), dtype=np.int64),
        "num_samples": plan.pieces.num_samples(packs),
        "num_tokens": pack_sums(plan.pieces.length, packs.offsets, packs.pieces),
        "num_loss_tokens": pack_sums(piece_loss.tokens, packs.offsets, packs.pieces),
    }
    if piece_loss.weights is not None:
        pack = owners(np.diff(packs.offsets))
        figures["loss_weight"] = np.bincount(pack, piece_loss.weights[packs.pieces], minlength=len(packs))
    groups = []
    for g, group in enumerate(plan.groups):
        own = packs.group == g
        files = [
            ShardInfo(
                path=shard.name,
                first_pack=shard.first_pack,
                num_packs=shard.num_packs,
                num_bytes=file.num_bytes,
                xxh3=file.xxh3,
            )
            for shard in shards
            if shard.group == g
            for file in finished[shard.name].files
        ]
        groups.append(
            GroupInfo(
                name=group.name(g),
                **vars(group),
                **{name: of_packs[own].sum().item() for name, of_packs in figures.items()},
                most_samples=int(figures["num_samples"][own].max(initial=0)),
                shards=tuple(files),
            )
        )
    return tuple(groups)


def shared_replicas(plan: Plan) -> tuple[Replicas, ...]:
    """List for the manifest the replicas of more than one GPU."""
    return tuple(
        Replicas(**layout.sizes, first_gpus=tuple(first.tolist()))
        for layout, first in plan.replicas.items()
        if layout.num_gpus > 1
    )


def file_info(folder: Path, path: str) -> FileInfo:
    """Describe for the manifest a file that is there. Price: reading it once."""
    file = folder / path
    return FileInfo(path=path, num_bytes=file.stat().st_size, xxh3=file_checksum(file))


BYTES_VERSION = 3
"""Part of the fingerprint; a release that writes other bytes of the same format raises it."""


def set_fingerprint(plan_fingerprint: str, options: WriteOptions) -> str:
    """Fingerprint of a packed data set."""
    index_only = ["index-only"] if options.index_only else []
    return fingerprint(plan_fingerprint, options.shard_size, FORMAT_VERSION, BYTES_VERSION, *index_only)


def is_of_plan(manifest: Manifest, plan_fingerprint: str) -> bool:
    """Whether a set was written from this plan; the plan's file itself may be damaged or missing."""
    return manifest.planned_fingerprint == set_fingerprint(plan_fingerprint, manifest.config.write)


def manifest_of_plan(folder: Path, plan_fingerprint: str) -> Manifest | None:
    """Read the manifest in a folder like `read_manifest`; None where it is missing, or of another plan."""
    if not (folder / MANIFEST_NAME).exists():
        return None
    manifest = read_manifest(folder)
    return manifest if is_of_plan(manifest, plan_fingerprint) else None


class SetWriter:
    """Writes the plan in a folder out: the shards of each task, then the whole set.

    Shards of an earlier run of the same plan are kept, if their checksums hold.
    """

    def __init__(
        self,
        header: PlanHeader,
        planned: tuple[Plan, PieceLoss],
        options: WriteOptions,
        folder: Path,
        store: Path,
        index: StoreIndex,
    ) -> None:
        """Cut the packs of a plan into shards.

        Args:
            planned: what `read_plan` gave.
            folder: of the version, which has its plan.
            store: the token store, and its index.
        """
        self._header, self._options, self._folder, self._store = header, options, folder, store
        self._planned, self._index = planned, index
        self._fingerprint = set_fingerprint(header.fingerprint, options)
        plan, _ = planned
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
        parts.begin(progress)
        if parts.todo:
            writer = ShardWriter(
                self._folder,
                self._header,
                self._planned,
                open_store(self._store, self._index),
                index_only=self._options.index_only,
                tasks=None if share.is_whole else parts.todo,
            )
            parts.make(engine, writer)
        share.record({task.name: parts.finished[task.name] for task in tasks})

    def complete(self, finished: Mapping[str, FinishedPart]) -> Manifest:
        """Write all else, when all shards are written.

        The manifest comes last: a folder without it is unfinished.

        Args:
            finished: the shards, by path; they are not read again.
        """
        plan, piece_loss = self._planned
        epochs = write_epochs(self._folder, "ranks", 0, plan, piece_loss, self._fingerprint)
        manifest = self._manifest(describe_groups(plan, piece_loss, self._tasks, finished), epochs)
        self._index.write(self._folder, STORE_COPY)
        if self._options.index_only:
            parts = self._index.parts
            for name in [*(part.path for part in parts), *(part.rejects_name for part in parts if part.rejects_xxh3)]:
                link_file(self._store / name, self._folder / TOKENS / name)
            self._index.write(self._folder / TOKENS)
        for path in self._folder.glob("ranks/rebalanced-*"):
            remove_folder(path)
        write_manifest(self._folder, manifest)
        return manifest

    def _manifest(self, groups: tuple[GroupInfo, ...], epochs: tuple[EpochInfo, ...]) -> Manifest:
        """Make the manifest, when all else is written."""
        (plan, _), header, index = self._planned, self._header, self._index
        parts = [
            PartInfo(
                path=f"{TOKENS}/{part.path}", num_bytes=part.num_bytes, xxh3=part.xxh3, num_samples=part.num_samples
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
            sources=inputs_of(index),
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
    folder: Path, path: str, first_epoch: int, plan: Plan, piece_loss: PieceLoss, own_fingerprint: str
) -> tuple[EpochInfo, ...]:
    """Write the rank manifests of a generation below `path`; what the manifest says of each epoch."""
    epochs = []
    for number, schedule in enumerate(plan.epochs, first_epoch):
        name = f"{path}/{epoch_name(number)}"
        columns = EpochColumns(plan, schedule, piece_loss)
        xxh3, ranks = write_epoch(folder, name, own_fingerprint, columns)
        epochs.append(
            EpochInfo(
                path=name,
                num_iterations=schedule.num_iterations,
                num_steps=schedule.num_steps,
                iterations_xxh3=xxh3,
                ranks=tuple(ranks),
            )
        )
    return tuple(epochs)


def listed_shards(folder: Path) -> dict[str, FinishedPart]:
    """List the shards that the manifest of a version vouches for, by path."""
    manifest = intact_or_none(read_manifest, folder)
    if manifest is None:
        return {}
    files = [WrittenFile(path=shard.path, num_bytes=shard.num_bytes, xxh3=shard.xxh3) for shard in manifest.shards]
    fingerprint = manifest.planned_fingerprint
    return {file.path: FinishedPart(name=file.path, fingerprint=fingerprint, files=(file,)) for file in files}
