"""`write`: a plan and its token store to shards, rank manifests and `hbpack.json`."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

from packer_cli.commands.engines import make_engine
from packer_cli.commands.job_array import Output, produce
from packer_cli.commands.output_folder import (
    current_manifest,
    locked_output,
    refuse_validation,
    store_of,
    write_rejected,
)
from packer_cli.commands.validation_set import locked_validation, removing_validation, validation_header
from packer_cli.config import WriteConfig
from packer_cli.config.messages import TreesError
from packer_cli.engine.array import ArrayIds, ArrayRecords, ArrayShare, ArrayTask
from packer_cli.engine.base import Engine
from packer_cli.engine.parts import find_listing, remove_work
from packer_cli.engine.progress import Stopwatch, naming, progress_bar, say, warn
from packer_cli.engine.sink import FinishedPart
from packer_cli.errors import ConfigError, FormatError, InputError
from packer_cli.files import remove_folder
from packer_cli.folders import TaskLock
from packer_cli.format.constants import MANIFEST_NAME, PLAN_NAME, REJECTED_NAME, SHARD_MARKERS, VALIDATION
from packer_cli.format.manifest import Manifest, WriteOptions
from packer_cli.remote.path import is_remote
from packer_cli.shards.manifest import file_info, with_names, write_manifest
from packer_cli.shards.plan_file import PlanHeader, read_plan_header
from packer_cli.shards.repair import describe_damage, find_damaged, repair, set_files
from packer_cli.shards.stage import SetWriter, is_of_plan, set_fingerprint
from packer_cli.sizes import counted, format_bytes
from packer_cli.tokens.index import TOKENS, find_damaged_parts, read_index

_MOST_WARNINGS = 10


def run_write(config: WriteConfig, folder: Path, engine: Engine, ids: ArrayIds | None = None) -> Manifest | None:
    """Write the shards, rank manifests and `hbpack.json` of the plan in `folder`.

    Args:
        ids: write the share of a task of a job array. The last task to end completes the set.

    Returns:
        The manifest; None for a task of an array that could not complete the set.
    """
    refuse_validation(folder)
    return produce(_Set(config, folder), engine, ids)


def write_planned(
    config: WriteConfig,
    header: PlanHeader,
    folder: Path,
    engine: Engine,
    *,
    is_pack: bool = False,
    recorded: Mapping[str, FinishedPart] | None = None,
) -> Manifest:
    """Like `run_write`, for a plan whose header is at hand, and without a lock.

    Args:
        is_pack: the token store was just written or checked, and options that are not given have their defaults.
        recorded: the shards that the tasks of an array have written, by path. Their records stay, as they say what is
            left to do if the run is killed.
    """
    refuse_remote_index(config, folder)
    options = chosen_options(config, header, folder, is_pack=is_pack)
    _write_validation(options, header, folder, engine, is_pack=is_pack)
    watch = Stopwatch()
    store = store_of(folder, header)
    manifest = current_manifest(folder)
    is_same = _is_of(manifest, header, options)

    def check_tokens() -> None:
        check_store(store, header.store_fingerprint, None if is_pack else engine)

    if manifest and is_same and recorded is not None:
        pass  # This goes on after a run was killed.
    elif manifest and is_same and _is_whole(folder, manifest, header, store, check_tokens, engine):
        manifest = _with_current_names(manifest, folder, store, header)
        remove_work(folder / SHARD_MARKERS)  # Left by a run that was killed when it had written the manifest.
    else:
        check_tokens()
        if manifest and manifest.history:
            why = "files are missing or damaged" if is_same else "other options of shards rewrite all files"
            warn(
                f"{why}: the set becomes as it was planned, for {counted(header.config.gpus, 'GPU')}; run hbpack "
                "rebalance again"
            )
        with progress_bar("Writing", unit="tokens") as progress:
            manifest = SetWriter(header, options, folder, store).write(engine, progress, recorded)
        if recorded is None and not header.config.is_validation:
            say(f"wrote {describe_set(manifest)} ({watch})")
    _deal_validation(folder, header, manifest)
    if not config.keep_tokens:
        remove_tokens(folder, store)
    return manifest


def _write_validation(
    options: WriteOptions, header: PlanHeader, folder: Path, engine: Engine, *, is_pack: bool
) -> None:
    """Write the validation set of a plan that sets samples aside: first, as the manifest of training comes last.

    One that is there beside a plan that sets nothing aside is removed.
    """
    aside = validation_header(folder, header)
    if aside is not None:
        # It has its own tokens, which are few.
        config = WriteConfig(shard_size=options.shard_size, index_only=False, keep_tokens=True)
        with locked_validation(folder, has_plan=True) as own, naming(VALIDATION):
            write_planned(config, aside, own, engine, is_pack=is_pack)
    elif not header.config.is_validation:
        with removing_validation(folder):
            pass


def _deal_validation(folder: Path, header: PlanHeader, manifest: Manifest) -> None:
    """Deal the validation set, if there is one, to the GPUs of the set of training."""
    if header.config.sets_aside:
        from packer_cli.commands.rebalance import rebalance_validation  # Loads numba.

        rebalance_validation(folder, manifest.num_gpus)


def _is_of(manifest: Manifest | None, header: PlanHeader, options: WriteOptions) -> bool:
    """Whether a set is that of a plan and these options."""
    return manifest is not None and manifest.planned_fingerprint == set_fingerprint(header.fingerprint, options)


def chosen_options(config: WriteConfig, header: PlanHeader, folder: Path, *, is_pack: bool = False) -> WriteOptions:
    """How to write; by default as a set of this plan was written, as a repair must change nothing else.

    Args:
        is_pack: whether the command says all of what is wanted.

    Raises:
        ConfigError: the loader would not find the token store that `--index-only` needs, or the set has trees.
    """
    # While a run writes, the manifest waits among its markers.
    manifest = current_manifest(find_listing(folder, SHARD_MARKERS, MANIFEST_NAME).parent)
    written = manifest.config.write if manifest and is_of_plan(manifest, header.fingerprint) else None
    given = {name: getattr(config, name) for name in ("shard_size", "index_only")}
    if written is not None and not is_pack:
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
    refuse_index_of_trees(options, has_trees=header.counts.trees is not None)
    return options


def refuse_index_of_trees(options: WriteConfig | WriteOptions, *, has_trees: bool | None) -> None:
    """Raise ConfigError for `--index-only`, whose shards have no place for trees."""
    if options.index_only and has_trees:
        raise TreesError("--index-only", "has no place for shared prefixes", "leave it out")


def refuse_remote_index(config: WriteConfig, folder: Path) -> None:
    """Raise ConfigError for `--index-only` into remote storage."""
    if config.index_only and is_remote(folder):
        raise ConfigError(
            f"{folder}: with --index-only the loader maps the token store into memory, so name a local folder"
        )


def describe_set(manifest: Manifest) -> str:
    """Such as `2 shards, 5.2 MiB, and manifests for 8 ranks`."""
    shards = list(manifest.shards)
    num_bytes = sum(shard.num_bytes for shard in shards)
    return (
        f"{counted(len(shards), 'shard')}, {format_bytes(num_bytes)}, and manifests for "
        f"{counted(manifest.num_gpus, 'rank')}"
    )


def remove_tokens(folder: Path, store: Path) -> None:
    """Remove the token store of a set, unless it is elsewhere."""
    if store.resolve() == (folder / TOKENS).resolve():
        remove_folder(store)


def _is_whole(
    folder: Path,
    manifest: Manifest,
    header: PlanHeader,
    store: Path,
    check_tokens: Callable[[], None],
    engine: Engine,
    task: ArrayTask | None = None,
) -> bool:
    """Whether every file of the set, or of a task's share, is intact, after repairing the damaged ones if possible."""
    files = [file for file in set_files(manifest) if file.kind != "rejected"]
    if task is not None:
        files = task.share(files, [file.likely_bytes for file in files])
    with progress_bar("Checking") as progress:
        damaged = find_damaged(folder, files, engine, progress)
    rebalanced = f", rebalanced to {counted(manifest.num_gpus, 'GPU')}" if manifest.history else ""
    if not damaged:
        text = f"the set is complete, and the files of task {task} are intact"
        say(f"the shards are up to date{rebalanced}" if task is None else text)
        return True
    for path, why in itertools.islice(damaged.items(), _MOST_WARNINGS):
        warn(f"{str(folder / path)!r} is damaged ({why})")
    if len(damaged) > _MOST_WARNINGS:
        warn(f"and {counted(len(damaged) - _MOST_WARNINGS, 'other damaged file')}; hbpack verify lists them all")
    if any(file.kind == "shard" for file in files if file.path in damaged):
        check_tokens()
    if not repair(folder, manifest, header, damaged, store, engine):
        return False
    say(f"rewrote {counted(len(damaged), 'damaged file')}; the others are up to date{rebalanced}")
    return True


def _with_current_names(manifest: Manifest, folder: Path, store: Path, header: PlanHeader) -> Manifest:
    """The manifest with the names that inputs and tokenizer have now; it is written if they have changed.

    The fingerprint does not cover these names. Also rewrites a damaged `rejected.jsonl`, which holds them too.
    """
    rejected = next((file for file in set_files(manifest) if file.kind == "rejected"), None)
    why = describe_damage(folder, rejected) if rejected else None
    try:
        index = read_index(store)
    except InputError:
        index = None  # The tokens were not kept, so no name can have changed.
    if index is None or index.fingerprint != header.store_fingerprint:
        if why is not None:
            raise FormatError(
                f"{str(folder / REJECTED_NAME)!r} is damaged ({why}), and the token store that it is made from is "
                "gone; run the same hbpack pack again"
            )
        return manifest
    named = with_names(manifest, index)
    if why is not None:
        from packer_cli.commands.plan_store import LeftOut  # These load numba, which nothing else here needs.
        from packer_cli.tokens.samples import StoreSamples
        from packer_cli.tokens.store import TokenStore

        if write_rejected(folder, LeftOut(header.config, StoreSamples(TokenStore(store, index)))):
            say(f"{REJECTED_NAME} is rewritten")
        named = replace(named, rejected=file_info(folder, REJECTED_NAME))
    if named != manifest:
        write_manifest(folder, named)
        say(f"{MANIFEST_NAME} has the names that inputs and tokenizer have now")
    return named


def check_store(store: Path, fingerprint: str, engine: Engine | None, task: ArrayTask | None = None) -> None:
    """Check that the token store is the plan's and, with an engine, that its parts are intact. Reads them once.

    An ordinary run fetches all parts of a remote store, which checks them. A task of an array fetches few, so it reads
    its share here.

    Args:
        task: read only the share of this task.
    """
    if not store.is_dir():
        raise InputError(f"the plan's token store {str(store)!r} is gone; run hbpack tokenize and hbpack plan again")
    index = read_index(store)
    if index.fingerprint != fingerprint:
        raise FormatError(f"the token store {str(store)!r} has changed since the plan was made; run hbpack plan again")
    if task is not None:
        own = task.share(index.parts, [part.num_bytes for part in index.parts])
        index = replace(index, parts=tuple(own))
    if engine is not None and (task is not None or not is_remote(store)):
        for name, why in find_damaged_parts(store, index, engine).items():
            path = str(store / name)
            raise FormatError(
                f"token store part {path!r} is damaged ({why}); run the same hbpack tokenize or pack again"
            )


class _Set(Output[Manifest]):
    command = "write"

    def __init__(self, config: WriteConfig, folder: Path) -> None:
        self._config, self.folder = config, folder
        self.work, self.listing = folder / SHARD_MARKERS, folder / MANIFEST_NAME

    def hold(self, lock: TaskLock | None) -> AbstractContextManager[None]:
        return locked_output(self.folder, has_plan=True, task=lock)

    def make(self, engine: Engine) -> Manifest:
        return write_planned(self._config, read_plan_header(self.folder / PLAN_NAME), self.folder, engine)

    def make_share(self, engine: Engine, share: ArrayShare) -> bool:
        """Each task checks its share of the token store, so all of it has been checked once the set is complete."""
        watch, folder, task = Stopwatch(), self.folder, share.task
        refuse_remote_index(self._config, folder)
        header = read_plan_header(folder / PLAN_NAME)
        validation_header(folder, header)  # Reports a set that the last task could not write.
        store, manifest = store_of(folder, header), current_manifest(folder)
        options = chosen_options(self._config, header, folder)
        check_tokens = partial(check_store, store, header.store_fingerprint, engine, task)
        if manifest and _is_of(manifest, header, options):
            if task.index == 0:
                _write_validation(options, header, folder, engine, is_pack=False)
                _deal_validation(folder, header, manifest)
            if not _is_whole(folder, manifest, header, store, check_tokens, engine, task):
                raise FormatError(
                    f"{str(folder)!r} is damaged; run hbpack write --shard 0/1 to write what is damaged again"
                )
            return True
        agreed = {
            "the plan": header.fingerprint,
            "--shard-size": str(options.shard_size),
            "--index-only": str(options.index_only),
        }
        share.join(agreed, {"options": asdict(options), "keep_tokens": self._config.keep_tokens})
        try:
            check_tokens()
        except FormatError:
            share.start_over()  # The shards of the others may hold what is damaged.
            raise
        with progress_bar("Writing", unit="tokens") as progress:
            num_shards = len(SetWriter(header, options, folder, store).write_share(engine, progress, share))
        what = f"wrote {counted(num_shards, 'shard')} ({watch})"
        say(what if num_shards else f"the plan has no shard for task {task}")
        return False

    def complete(self) -> Manifest:
        records = ArrayRecords(self.work)
        pin = records.pin()
        assert pin is not None
        config = WriteConfig(**pin.facts["options"], keep_tokens=pin.facts["keep_tokens"])
        header = read_plan_header(self.folder / PLAN_NAME)
        return write_planned(config, header, self.folder, make_engine(1), is_pack=True, recorded=records.parts())

    def say_complete(self, result: Manifest) -> None:
        say(f"all tasks are done, and the set is complete: {describe_set(result)}")
