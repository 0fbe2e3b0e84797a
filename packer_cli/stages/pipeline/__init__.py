"""The chain of the stages: tokenize -> plan -> write. The only place that knows them all."""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packer_cli.config import PackConfig, PlanConfig, TokenizeConfig, WriteConfig, validate
from packer_cli.engine.local import LocalEngine
from packer_cli.engine.progress import Stopwatch, progress_bar, say, warn
from packer_cli.errors import FormatError, HbpackError, InputError, RunError, UsageError
from packer_cli.shards.manifest import MANIFEST_NAME, REJECTED_NAME, Manifest, read_manifest, write_manifest
from packer_cli.shards.plan_file import PLAN_NAME, read_plan, read_plan_header
from packer_cli.sizes import counted, format_bytes
from packer_cli.stages.output import TOKENS, alone
from packer_cli.stages.rejected import first_rejected, write_rejected

if TYPE_CHECKING:
    from packer_cli.plan.samples import Samples
    from packer_cli.tokens.index import StoreIndex


_MOST_WARNINGS = 10


@alone()
def run_pack(config: PackConfig, folder: Path, engine: LocalEngine, *, dry_run: bool = False) -> dict[str, Any]:
    """Corpus to shards. Gives the plan's header (configuration, counts, metrics)."""
    from packer_cli.config.rules import plan_rules
    from packer_cli.stages.groups import stand_in

    likely = stand_in(config.part(PlanConfig))
    plan_rules(likely)  # What is wrong with them is said before the long work.
    is_parallel = engine.workers > 1 and not (folder / PLAN_NAME).exists()
    with _kernels(likely) if is_parallel else nullcontext():
        tokenize_corpus(config.part(TokenizeConfig), folder, engine)
    engine.release()
    header = run_plan(config.part(PlanConfig), folder, folder)
    if not dry_run:
        run_write(config.part(WriteConfig), folder, engine, trusts_tokens=True)
    return header


@contextmanager
def _kernels(config: PlanConfig) -> Iterator[None]:
    """Load the plan's kernels on a thread beside the block; on a first run, compile them in processes beside it."""
    from packer_cli.engine.aside import aside
    from packer_cli.kernels import known_as_compiled, note_compiled, skip_extensions
    from packer_cli.stages.warming import kernel_shares, kernels_name, warm_up

    skip_extensions()
    name = kernels_name(config)
    if known_as_compiled(name):
        with ThreadPoolExecutor(1) as thread:
            loading = thread.submit(warm_up, config)
            yield
        loading.result()
        return
    with aside(kernel_shares(config)):
        yield
    note_compiled(name)


def run_tokenize(config: TokenizeConfig, folder: Path, engine: LocalEngine) -> StoreIndex:
    """Corpus to `folder/tokens`, and `folder/rejected.jsonl`.

    Raises:
        RunError: every record was rejected.
    """
    index = tokenize_corpus(config, folder, engine)
    if any(part.num_rejected for part in index.parts):
        if not any(part.num_samples for part in index.parts):
            raise RunError(f"every record was rejected, see {str(folder / REJECTED_NAME)!r}")
        say(f"rejected records, with reasons: {folder / REJECTED_NAME}")
    return index


@alone()
def tokenize_corpus(config: TokenizeConfig, folder: Path, engine: LocalEngine) -> StoreIndex:
    """As `run_tokenize`, where it is for the caller to say that nothing is left."""
    from packer_cli.stages.choices import choices, repeated, tokenized
    from packer_cli.tokens.stage import tokenize

    before = {path for path in [folder, *folder.rglob("*")] if path.exists()}
    watch = Stopwatch()

    def announce(tokenizer: dict[str, Any]) -> None:
        for line in choices(config, tokenizer):
            say(line)

    try:
        with progress_bar("Tokenizing") as progress:
            index, num_reused = tokenize(config, folder / TOKENS, engine, progress, announce)
    except UsageError:
        _remove_new(folder, before)
        raise
    for text in dict.fromkeys(text for part in index.parts for text in part.warnings):
        warn(text)
    for file in (file for part in index.parts for file in part.files if file.unreadable):
        warn(f"{file.path}: {file.unreadable}")
    twice = repeated(index)
    if twice is not None:
        warn(twice)
    for line in tokenized(config, index, num_reused, str(watch)):
        say(line)
    rejected = first_rejected(index, folder / TOKENS)
    if rejected is not None:
        say(f"first rejected: {rejected}")
    if not _is_planned(folder, index):
        write_rejected(folder, index, folder / TOKENS, [])  # With a plan, it says what became of its samples too.
    return index


def run_plan(config: PlanConfig, source: Path, folder: Path) -> dict[str, Any]:
    """Token store in `source/tokens` to `folder/plan.arrow`, and `folder/rejected.jsonl`."""
    from packer_cli.config.rules import plan_rules, with_known_cost
    from packer_cli.stages.groups import stand_in
    from packer_cli.tokens.index import read_index

    config = with_known_cost(config)
    plan_rules(stand_in(config))  # What is wrong with the options is said first.
    # `folder` may be `source`, and who named the wrong one must not read that his output folder is in use.
    read_index(source / TOKENS)
    return _plan(config, source, folder)


@alone()
def _plan(config: PlanConfig, source: Path, folder: Path) -> dict[str, Any]:
    from packer_cli.cli.tables.compare import overflow_notes
    from packer_cli.kernels import skip_extensions
    from packer_cli.shards.plan_file import write_plan
    from packer_cli.stages.planning import NothingToPlanError, overflow_entries, plan_fingerprint, plan_store
    from packer_cli.stages.samples import samples_of_store
    from packer_cli.tokens.index import read_index
    from packer_cli.tokens.store import TokenStore

    watch = Stopwatch()
    skip_extensions()
    index = read_index(source / TOKENS)
    config, choice = with_known_groups(config, lambda: samples_of_store(TokenStore(source / TOKENS, index)))
    wanted = plan_fingerprint(config, index.fingerprint, choice)
    header = _current_plan(folder)
    if (
        header
        and header["fingerprint"] == wanted
        and _store_of(folder, header).resolve() == (source / TOKENS).resolve()
        and (folder / REJECTED_NAME).exists()
    ):
        say("the plan is up to date")
        overflow = overflow_entries(config, source / TOKENS, index)
        if write_rejected(folder, index, source / TOKENS, overflow):  # It has names of files, and the plan has none.
            say(f"{REJECTED_NAME} is rewritten")
        return header
    keeps_set = _is_of_plan(folder, wanted)
    try:
        result = plan_store(config, TokenStore(source / TOKENS, index), folder, choice)
    except NothingToPlanError as error:
        _disown_plan(folder)
        write_rejected(folder, index, source / TOKENS, error.overflow)
        (folder / PLAN_NAME).unlink(missing_ok=True)
        raise
    if not keeps_set:
        _disown_plan(folder)
    write_plan(folder / PLAN_NAME, result.plan, result.piece_loss_tokens, result.header)
    write_rejected(folder, index, source / TOKENS, result.overflow)
    overall = result.header["metrics"]["overall"]
    say(
        f"planned {counted(overall['num_packs'], 'pack')}, {counted(overall['num_iterations'], 'iteration')}, "
        f"{counted(overall['num_steps'], 'step')} ({watch})"
    )
    for note in overflow_notes(result.header["counts"], config):
        say(note)
    return result.header


def with_known_groups(config: PlanConfig, samples: Callable[[], Samples]) -> tuple[PlanConfig, dict[str, Any] | None]:
    """The options with groups in the place of `auto`, and what is recorded of the choice."""
    if not config.is_auto:
        return config, None  # Their samples need not be read.
    from packer_cli.cli.tables.groups import describe
    from packer_cli.stages.groups import resolve

    config, choice = resolve(config, samples().epoch_lengths(config.seed))
    if choice is not None:
        say(describe(choice))
    return config, choice


@alone(has_plan=True)
def run_write(config: WriteConfig, folder: Path, engine: LocalEngine, *, trusts_tokens: bool = False) -> Manifest:
    """The plan in `folder` to shards, rank manifests and `hbpack.json`.

    Args:
        trusts_tokens: the token store was written or checked just now.
    """
    from packer_cli.shards.stage import set_fingerprint, write_set

    watch = Stopwatch()
    header = read_plan_header(folder / PLAN_NAME)
    store = _store_of(folder, header)
    manifest = _current_manifest(folder)
    if manifest and "shard_size" not in config.model_fields_set and _is_of_plan(folder, header["fingerprint"]):
        # So that a repair changes nothing else.
        config = config.model_copy(update={"shard_size": manifest.config["write"]["shard_size"]})
    wanted = set_fingerprint(header["fingerprint"], config.shard_size)
    is_same = manifest is not None and manifest.planned_fingerprint == wanted

    def check_tokens() -> None:
        _check_store(store, header, None if trusts_tokens else engine)

    if manifest and is_same and _is_whole(folder, manifest, store, check_tokens, engine):
        manifest = _renamed(manifest, folder, store, header)
        _drop_tokens(config, folder, store)
        return manifest
    check_tokens()
    if manifest and manifest.history and is_same:
        warn(
            "files are missing or damaged: the set becomes as it was planned, for "
            f"{counted(header['num_gpus'], 'GPU')}; run hbpack rebalance again"
        )
    with progress_bar("Writing", unit="tokens") as progress:
        manifest = write_set(config, folder, store, engine, progress)
    shards = [shard for group in manifest.groups for shard in group.shards]
    num_bytes = sum(shard.num_bytes for shard in shards)
    say(
        f"wrote {counted(len(shards), 'shard')}, {format_bytes(num_bytes)}, and manifests for "
        f"{counted(manifest.num_gpus, 'rank')} ({watch})"
    )
    _drop_tokens(config, folder, store)
    return manifest


def _is_of_plan(folder: Path, plan_fingerprint: str) -> bool:
    """Whether the set in a folder was written by this very plan, which then is only damaged or gone."""
    from packer_cli.shards.stage import set_fingerprint

    manifest = _current_manifest(folder)
    return manifest is not None and (
        set_fingerprint(plan_fingerprint, manifest.config["write"]["shard_size"]) == manifest.planned_fingerprint
    )


def _store_of(folder: Path, header: dict[str, Any]) -> Path:
    """The token store of the plan in a folder."""
    return Path(os.path.normpath(folder / header["store"]))


def _is_planned(folder: Path, index: StoreIndex) -> bool:
    """Whether the plan in a folder is of the token store there, as it is now."""
    header = _current_plan(folder)
    return (
        header is not None
        and header["store_fingerprint"] == index.fingerprint
        and _store_of(folder, header).resolve() == (folder / TOKENS).resolve()
        and (folder / REJECTED_NAME).exists()
    )


def _disown_plan(folder: Path) -> None:
    """Before another plan is written in its place; `rejected.jsonl` comes last and vouches for that.

    The plan itself stays until then, or the reasons why there is none: they say that the folder is ours, should this
    run be killed.
    """
    (folder / MANIFEST_NAME).unlink(missing_ok=True)
    if (folder / PLAN_NAME).exists():
        (folder / REJECTED_NAME).unlink(missing_ok=True)


def _current_plan(folder: Path) -> dict[str, Any] | None:
    try:
        return read_plan(folder / PLAN_NAME, check=True)[2]
    except HbpackError:
        return None


def _current_manifest(folder: Path) -> Manifest | None:
    try:
        return read_manifest(folder)
    except HbpackError:
        return None


def _is_whole(
    folder: Path, manifest: Manifest, store: Path, check_tokens: Callable[[], None], engine: LocalEngine
) -> bool:
    """Whether every file of the set has its bytes, perhaps since the damaged ones were written again."""
    from packer_cli.shards.repair import find_damaged, repair, set_files

    files = [file for file in set_files(manifest) if file.kind != "rejected"]  # `_renamed` looks after that.
    with progress_bar("Checking") as progress:
        damaged = find_damaged(folder, files, engine, progress)
    rebalanced = f", rebalanced to {counted(manifest.num_gpus, 'GPU')}" if manifest.history else ""
    if not damaged:
        say(f"the shards are up to date{rebalanced}")
        return True
    for path, why in itertools.islice(damaged.items(), _MOST_WARNINGS):
        warn(f"{str(folder / path)!r} is damaged ({why})")
    if len(damaged) > _MOST_WARNINGS:
        warn(f"and {counted(len(damaged) - _MOST_WARNINGS, 'other damaged file')}; hbpack verify lists them all")
    if any(file.kind == "shard" for file in files if file.path in damaged):
        check_tokens()
    if not repair(folder, manifest, damaged, store, engine):
        return False
    say(f"rewrote {counted(len(damaged), 'damaged file')}; the others are up to date{rebalanced}")
    return True


def _renamed(manifest: Manifest, folder: Path, store: Path, header: dict[str, Any]) -> Manifest:
    """The manifest with the names that the store has now, which are no part of its fingerprint; written if new.

    `rejected.jsonl`, which has these names, is written again where it is damaged or has others.
    """
    from packer_cli.shards.repair import describe_damage, set_files
    from packer_cli.shards.stage import file_info, with_names
    from packer_cli.tokens.index import read_index

    rejected = next((file for file in set_files(manifest) if file.kind == "rejected"), None)
    why = describe_damage(folder, rejected) if rejected else None
    try:
        index = read_index(store)
    except InputError:
        index = None  # The tokens were not kept, and so nothing has another name.
    if index is None or index.fingerprint != header["store_fingerprint"]:
        if why is not None:
            raise FormatError(
                f"{str(folder / REJECTED_NAME)!r} is damaged ({why}), and the token store that it is made from is "
                "gone; run the same hbpack pack again"
            )
        return manifest
    named = with_names(manifest, index)
    if why is not None:
        from packer_cli.stages.planning import overflow_entries

        overflow = overflow_entries(validate(PlanConfig, header["config"]), store, index)
        if write_rejected(folder, index, store, overflow):
            say(f"{REJECTED_NAME} is rewritten")
        named = named.model_copy(update={"rejected": file_info(folder, REJECTED_NAME)})
    if named != manifest:
        write_manifest(folder, named)
        say(f"{MANIFEST_NAME} has the names that inputs and tokenizer have now")
    return named


def _check_store(store: Path, header: dict[str, Any], engine: LocalEngine | None) -> None:
    """That a token store is the plan's, and with an engine, that its parts are whole, which reads them once."""
    from packer_cli.tokens.index import find_part_damage, read_index

    if not store.is_dir():
        raise InputError(f"the plan's token store {str(store)!r} is gone; run hbpack tokenize and hbpack plan again")
    index = read_index(store)
    if index.fingerprint != header["store_fingerprint"]:
        raise FormatError(f"the token store {str(store)!r} has changed since the plan was made; run hbpack plan again")
    if engine is not None:
        for i, why in engine.run_threads(lambda part: find_part_damage(store, part), index.parts):
            if why is not None:
                name = str(store / index.parts[i].path)
                raise FormatError(
                    f"token store part {name!r} is damaged ({why}); run the same hbpack tokenize or pack again"
                )


def _drop_tokens(config: WriteConfig, folder: Path, store: Path) -> None:
    """Remove the token store if asked, but only one that is the output's own."""
    if not config.keep_tokens and store.resolve() == (folder / TOKENS).resolve():
        shutil.rmtree(store, ignore_errors=True)


def _remove_new(folder: Path, before: set[Path]) -> None:
    """After a usage error nothing may have been written: remove what was not there before."""
    for path in sorted({folder, *folder.rglob("*")} - before, reverse=True):
        if path.is_dir():
            path.rmdir()
        else:
            path.unlink(missing_ok=True)
