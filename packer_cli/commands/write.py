"""`write`: a plan and its token store to shards, rank manifests and `hbpack.json`."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

from packer_cli.commands.output_folder import current_manifest, locked_output, require_sound
from packer_cli.commands.versions import prune_versions, say_older
from packer_cli.config import WriteConfig
from packer_cli.config.messages import TreesError
from packer_cli.engine.array import ArrayIds, TaskShare, merged
from packer_cli.engine.local import Engine
from packer_cli.engine.output import Output, make_whole, produce
from packer_cli.engine.progress import Stopwatch, naming, progress_bar, say, warn
from packer_cli.engine.sink import FinishedPart
from packer_cli.errors import ConfigError, FormatError, InputError, fault_of
from packer_cli.files import intact_or_none, link_file, remove_folder
from packer_cli.folder_lock import TaskLock
from packer_cli.format.constants import MANIFEST_NAME, PLAN_NAME, REJECTED_NAME, SHARD_MARKERS, STORE_COPY, VALIDATION
from packer_cli.format.manifest import Manifest, WriteOptions
from packer_cli.remote.path import is_remote
from packer_cli.shards.manifest import (
    SetWriter,
    file_info,
    is_of_plan,
    read_manifest,
    set_fingerprint,
    write_manifest,
)
from packer_cli.shards.own_store import has_copy, own_index, store_of
from packer_cli.shards.plan_file import PlanHeader, read_plan, read_plan_header
from packer_cli.shards.repair import describe_damage, find_damaged, repair, set_files
from packer_cli.shards.versions import make_current, remove_unfinished, take_plan
from packer_cli.sizes import counted, format_bytes
from packer_cli.tokens.accounts import inputs_of
from packer_cli.tokens.derived import note_derived, say_derived
from packer_cli.tokens.index import TOKENS, StoreIndex, find_damaged_parts, read_index
from packer_cli.tokens.rejects import write_rejected

_MOST_WARNINGS = 10


def run_write(config: WriteConfig, folder: Path, engine: Engine, ids: ArrayIds | None = None) -> Manifest | None:
    """Write the shards, rank manifests and `hbpack.json` of the plan in `folder`.

    Args:
        ids: the task of a job array whose share to write. The last task to end completes the set.

    Returns:
        The manifest; None for a task of an array that could not complete the set.
    """
    return produce(PackedOutput(config, folder, command="write"), engine, ids)


def chosen_options(config: WriteConfig, header: PlanHeader, folder: Path) -> WriteOptions:
    """Choose the options to write with; by default those of this plan's set, as a repair must change nothing else.

    Raises:
        ConfigError: the loader would not find the token store that `--index-only` needs, or the set has trees.
    """
    manifest = current_manifest(folder)
    written = manifest.config.write if manifest and is_of_plan(manifest, header.fingerprint) else None
    given = {name: getattr(config, name) for name in ("shard_size", "index_only")}
    if written is not None:
        given |= {name: getattr(written, name) for name in given if name not in config.model_fields_set}
    options = WriteOptions(**given)
    if options.index_only and not config.keep_tokens:
        raise ConfigError(
            "the set was written with --index-only, so training reads its token store; leave out --no-keep-tokens"
        )
    if options.index_only and header.store != TOKENS:
        raise ConfigError(
            f"--index-only needs the token store in the folder of the set, but the plan's is "
            f"{str(store_of(folder, header))!r}; run hbpack plan there, without --output"
        )
    refuse_index(options, header.counts.unit)
    return options


def refuse_index(options: WriteConfig | WriteOptions, unit: str | None = None, folder: Path | None = None) -> None:
    """Raise ConfigError for `--index-only` of items, as its shards have no place for trees, or into remote storage."""
    if options.index_only and unit == "item":
        raise TreesError("--index-only", "has no place for shared prefixes", "leave it out")
    if options.index_only and folder is not None and is_remote(folder):
        raise ConfigError(
            f"{folder}: with --index-only the loader maps the token store into memory, so name a local folder"
        )


def describe_set(manifest: Manifest) -> str:
    """Describe a set, such as `2 shards, 5.2 MiB, and manifests for 8 ranks`."""
    shards = list(manifest.shards)
    num_bytes = sum(shard.num_bytes for shard in shards)
    return (
        f"{counted(len(shards), 'shard')}, {format_bytes(num_bytes)}, and manifests for "
        f"{counted(manifest.num_gpus, 'rank')}"
    )


class PackedOutput(Output[Manifest]):
    """A version of the set in a folder, made of the plan there; and the version's validation set, if there is one."""

    command, name = "write", "the set"

    def __init__(
        self,
        config: WriteConfig,
        folder: Path,
        aside_of: PackedOutput | None = None,
        *,
        command: str,
        is_pack: bool = False,
    ):
        """Read the plan's header.

        Args:
            folder: of the plan.
            aside_of: the set whose validation set this is.
            command: see `make_current`.
            is_pack: whether the token store was just written or checked.
        """
        self._config, self.folder, self._aside_of, self._is_pack = config, folder, aside_of, is_pack
        self._made_by = command
        self.home = folder
        """Folder of the version."""
        self._there: Manifest | None = None
        """The manifest, if the set is complete already."""
        self._read_plan()

    def _read_plan(self) -> None:
        """Read the plan's header, which with the options decides the version."""
        refuse_index(self._config, folder=self.folder)
        header = self._header = read_plan_header(self.folder / PLAN_NAME)
        options = self._options = chosen_options(self._config, header, self.folder)
        self._fingerprint = set_fingerprint(header.fingerprint, options)
        self._store = store_of(self.folder, header)
        if self._aside_of is not None:
            self.home = self._aside_of.home / VALIDATION
        else:
            there = intact_or_none(read_manifest, self.folder)
            is_copy = there and there.folder is None and there.planned_fingerprint == self._fingerprint
            self.home = self.folder if is_copy else self.folder / self._fingerprint
        self.work, self.listing = self.home / SHARD_MARKERS, self.home / MANIFEST_NAME

    def hold(self, lock: TaskLock | None) -> AbstractContextManager[None]:
        """Lock the folder of the plan."""
        return locked_output(self.folder, has_plan=True, task=lock)

    def make_share(self, engine: Engine, share: TaskShare) -> Manifest | None:
        """Write a task's share of the set, after a check of its share of the store: a complete set has checked all."""
        self._watch = Stopwatch()
        self._read_plan()  # Another run may have planned before this one had the lock.
        header, home, options = self._header, self.home, self._options
        require_sound(self.folder, header)
        manifest = intact_or_none(read_manifest, home)
        if manifest and manifest.planned_fingerprint != self._fingerprint:
            manifest = None  # Of another validation set.
        if manifest:
            if share.task.index == 0:
                self._write_validation(engine, manifest.num_gpus)
            if self._is_whole(manifest, engine, share):
                if share.is_whole:
                    manifest = self._with_current_names(manifest)
                    self._end(manifest)
                self._there = manifest
                return manifest
            if not share.is_whole:
                raise FormatError(
                    f"{str(self.folder)!r} is damaged; run hbpack write --shard 0/1 to write what is damaged again"
                )
        shape = {f"--{name.replace('_', '-')}": str(value) for name, value in asdict(options).items()}
        share.join({"the plan": header.fingerprint, **shape})
        try:
            index = self._check_tokens(engine, share)
        except FormatError:
            share.start_over()  # The shards of the others may hold what is damaged.
            raise
        if header.store != TOKENS and self._aside_of is None:
            note_derived(self._store, index, "set", home)
        before = manifest or current_manifest(self.folder)
        if before and before.history and is_of_plan(before, header.fingerprint):
            why = "files are missing or damaged" if manifest else "other options of shards make another version"
            warn(
                f"{why}: the set becomes as it was planned, for {counted(header.config.gpus, 'GPU')}; run hbpack "
                "rebalance again"
            )
        planned = read_plan(self.folder / PLAN_NAME, check=True)
        take_plan(self.folder, home)
        with progress_bar("Writing", unit="tokens") as progress:
            self._writer = SetWriter(header, planned, options, home, self._store, index)
            self._writer.write_share(engine, progress, share)
        return None

    def complete(self, engine: Engine, share: TaskShare, parts: Sequence[Mapping[str, FinishedPart]]) -> Manifest:
        """Write the validation set and the manifest, and make the version the current one."""
        manifest = self._there
        if manifest is None:  # Otherwise this goes on after a run was killed.
            # First, as the manifest of training comes last.
            self._write_validation(engine, self._header.config.gpus)
            manifest = self._writer.complete(merged(parts))
            if share.is_whole and self._aside_of is None:
                say(f"wrote {describe_set(manifest)} ({self._watch})")
        self._end(manifest)
        return manifest

    def _end(self, manifest: Manifest) -> None:
        """Make a complete set of training the current version, and remove the token store, if it is not to be kept."""
        if self._aside_of is not None:
            return
        make_current(self.folder, self.home, manifest, self._made_by)
        remove_unfinished(self.folder)
        if self._config.keep is not None:
            prune_versions(self.folder, self._config.keep)
        say_older(self.folder)
        say_derived(self._store.parent)
        if not self._config.keep_tokens and self._store.resolve() == (self.folder / TOKENS).resolve():
            remove_folder(self._store)

    def describe(self, result: Manifest) -> str:
        """Describe the set, for the line of the last task of an array."""
        return describe_set(result)

    def _write_validation(self, engine: Engine, num_gpus: int) -> None:
        """Write the validation set of a plan that sets samples aside, for as many GPUs as the set of training."""
        if not self._header.config.sets_aside:
            return
        config = WriteConfig(shard_size=self._options.shard_size)  # It has its own tokens, which are few.
        own = PackedOutput(config, self.folder / VALIDATION, self, command=self._made_by, is_pack=self._is_pack)
        with naming(VALIDATION):
            if make_whole(own, engine).num_gpus != num_gpus:
                from packer_cli.commands.rebalance import START, deal  # Loads numba.

                deal(own.home, num_gpus, START)

    def _is_whole(self, manifest: Manifest, engine: Engine, share: TaskShare) -> bool:
        """Whether every file of a task's share of the set is intact, after repairing the damaged ones if possible."""
        files = [file for file in set_files(self.home, manifest) if file.kind != "rejected"]
        files = share.task.share(files, [file.likely_bytes for file in files])
        with progress_bar("Checking") as progress:
            damaged = find_damaged(self.home, files, engine, progress)
        rebalanced = f", rebalanced to {counted(manifest.num_gpus, 'GPU')}" if manifest.history else ""
        if not damaged:
            if share.is_whole:
                say(f"the shards are up to date{rebalanced}")
            return True
        for path, why in itertools.islice(damaged.items(), _MOST_WARNINGS):
            warn(f"{str(self.home / path)!r} {fault_of(why)}")
        if len(damaged) > _MOST_WARNINGS:
            warn(f"and {counted(len(damaged) - _MOST_WARNINGS, 'other damaged file')}; hbpack verify lists them all")
        if any(file.kind in ("shard", "tokens") for file in files if file.path in damaged):
            self._check_tokens(engine, share)
        if PLAN_NAME in damaged:
            read_plan(self.folder / PLAN_NAME, check=True)  # It may be the same file.
            take_plan(self.folder, self.home)
        if not repair(self.home, manifest, self._header, damaged, engine):
            return False
        take_plan(self.home, self.folder)  # A damaged plan is one file of two names.
        say(f"rewrote {counted(len(damaged), 'damaged file')}; the others are up to date{rebalanced}")
        return True

    def _with_current_names(self, manifest: Manifest) -> Manifest:
        """Give the manifest the names that inputs and tokenizer have now; write what has changed or is damaged.

        The fingerprint does not cover these names. `rejected.jsonl`, which has them too, is taken from the plan.
        """
        home, store = self.home, self._store
        rejected = next((file for file in set_files(home, manifest) if file.kind == "rejected"), None)
        index = intact_or_none(read_index, store)  # Without it, no name can have changed.
        if index is None or index.fingerprint != self._header.store_fingerprint:
            if rejected and (why := describe_damage(home, rejected)):
                raise FormatError(
                    f"{str(home / REJECTED_NAME)!r} is damaged ({why}), and the token store that it is made from is "
                    "gone; run the same hbpack pack again"
                )
            return manifest
        # The names that its token store has now, which decide no byte of the shards.
        if not has_copy(home, index.fingerprint):
            say(f"{STORE_COPY} is rewritten")
        if intact_or_none(read_index, home, STORE_COPY) != index:
            index.write(home, STORE_COPY)
        named = replace(manifest, tokenizer=index.tokenizer, sources=inputs_of(index))
        if rejected and (named != manifest or describe_damage(home, rejected)):
            from packer_cli.commands.plan_notes import left_out  # These load numba, which nothing else here needs.
            from packer_cli.tokens.samples import StoreSamples
            from packer_cli.tokens.store import open_store

            of_store = StoreSamples(open_store(store, index))
            if write_rejected(self.folder, partial(left_out, self._header.config, of_store)):
                say(f"{REJECTED_NAME} is rewritten")
            if self.folder != home:
                link_file(self.folder / REJECTED_NAME, home / REJECTED_NAME)
            named = replace(named, rejected=file_info(home, REJECTED_NAME))
        if named != manifest:
            write_manifest(home, named)
            say(f"{MANIFEST_NAME} has the names that inputs and tokenizer have now")
        return named

    def _check_tokens(self, engine: Engine, share: TaskShare) -> StoreIndex:
        """Check that the token store is the plan's and, unless this is a pack, that a share of its parts is intact.

        An ordinary run fetches all parts of a remote store, which checks them. A task of an array fetches few, so the
        task reads its share.
        """
        store = self._store
        if not store.is_dir():
            raise InputError(
                f"the plan's token store {str(store)!r} is gone; run hbpack tokenize and hbpack plan again"
            )
        index = own_index(self.folder, self._header)
        own = tuple(share.task.share(index.parts, [part.num_bytes for part in index.parts]))
        if not (self._is_pack or (share.is_whole and is_remote(store))):
            for name, why in find_damaged_parts(store, replace(index, parts=own), engine).items():
                path = str(store / name)
                raise FormatError(
                    f"token store part {path!r} {fault_of(why)}; run the same hbpack tokenize or pack again"
                )
        return index
