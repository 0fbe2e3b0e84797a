"""The write stage: a plan and its token store to shards, rank manifests and `hbpack.json`."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from packer_cli.config import WriteConfig
from packer_cli.engine.base import Engine
from packer_cli.engine.progress import Stopwatch, progress_bar, say, warn
from packer_cli.errors import FormatError, InputError
from packer_cli.format.constants import MANIFEST_NAME, PLAN_NAME, REJECTED_NAME
from packer_cli.format.manifest import Manifest
from packer_cli.shards.manifest import write_manifest
from packer_cli.shards.plan_file import PlanHeader, read_plan_header
from packer_cli.shards.repair import describe_damage, find_damaged, repair, set_files
from packer_cli.shards.stage import file_info, is_of_plan, set_fingerprint, with_names, write_set
from packer_cli.sizes import counted, format_bytes
from packer_cli.stages.output import TOKENS, current_manifest, locked_output, store_of
from packer_cli.stages.rejected import write_rejected
from packer_cli.tokens.index import find_damaged_parts, read_index

_MOST_WARNINGS = 10


def run_write(config: WriteConfig, folder: Path, engine: Engine) -> None:
    """Write the shards, rank manifests and `hbpack.json` of the plan in `folder`."""
    with locked_output(folder, has_plan=True):
        write_planned(config, read_plan_header(folder / PLAN_NAME), folder, engine, trusts_tokens=False)


def write_planned(
    config: WriteConfig, header: PlanHeader, folder: Path, engine: Engine, *, trusts_tokens: bool
) -> None:
    """Like `run_write`, for a plan whose header is at hand, and without a lock.

    Args:
        trusts_tokens: skip the check of the token store, which was just written or checked.
    """
    watch = Stopwatch()
    store = store_of(folder, header)
    manifest = current_manifest(folder)
    shard_size = config.shard_size
    if manifest and "shard_size" not in config.model_fields_set and is_of_plan(manifest, header.fingerprint):
        shard_size = manifest.config.write.shard_size  # A repair must change nothing else.
    wanted = set_fingerprint(header.fingerprint, shard_size)
    is_same = manifest is not None and manifest.planned_fingerprint == wanted

    def check_tokens() -> None:
        _check_store(store, header.store_fingerprint, None if trusts_tokens else engine)

    if manifest and is_same and _is_whole(folder, manifest, header, store, check_tokens, engine):
        _update_names(manifest, folder, store, header)
    else:
        check_tokens()
        if manifest and manifest.history and is_same:
            warn(
                "files are missing or damaged: the set becomes as it was planned, for "
                f"{counted(header.config.gpus, 'GPU')}; run hbpack rebalance again"
            )
        with progress_bar("Writing", unit="tokens") as progress:
            manifest = write_set(header, shard_size, folder, store, engine, progress)
        shards = list(manifest.shards)
        num_bytes = sum(shard.num_bytes for shard in shards)
        say(
            f"wrote {counted(len(shards), 'shard')}, {format_bytes(num_bytes)}, and manifests for "
            f"{counted(manifest.num_gpus, 'rank')} ({watch})"
        )
    if not config.keep_tokens and store.resolve() == (folder / TOKENS).resolve():
        shutil.rmtree(store, ignore_errors=True)


def _is_whole(
    folder: Path,
    manifest: Manifest,
    header: PlanHeader,
    store: Path,
    check_tokens: Callable[[], None],
    engine: Engine,
) -> bool:
    """Whether every file of the set is intact, after repairing the damaged ones where possible."""
    files = [file for file in set_files(manifest) if file.kind != "rejected"]  # `_update_names` handles that one.
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
    if not repair(folder, manifest, header, damaged, store, engine):
        return False
    say(f"rewrote {counted(len(damaged), 'damaged file')}; the others are up to date{rebalanced}")
    return True


def _update_names(manifest: Manifest, folder: Path, store: Path, header: PlanHeader) -> None:
    """Write the manifest if the names of inputs and tokenizer have changed.

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
        return
    named = with_names(manifest, index)
    if why is not None:
        from packer_cli.stages.planning import overflow_entries  # Loads numba, which nothing else here needs.

        overflow = overflow_entries(header.config, store, index)
        if write_rejected(folder, index, store, overflow):
            say(f"{REJECTED_NAME} is rewritten")
        named = replace(named, rejected=file_info(folder, REJECTED_NAME))
    if named != manifest:
        write_manifest(folder, named)
        say(f"{MANIFEST_NAME} has the names that inputs and tokenizer have now")


def _check_store(store: Path, fingerprint: str, engine: Engine | None) -> None:
    """Check that the token store is the plan's and, with an engine, that its parts are intact. Reads them once."""
    if not store.is_dir():
        raise InputError(f"the plan's token store {str(store)!r} is gone; run hbpack tokenize and hbpack plan again")
    index = read_index(store)
    if index.fingerprint != fingerprint:
        raise FormatError(f"the token store {str(store)!r} has changed since the plan was made; run hbpack plan again")
    if engine is not None:
        for name, why in find_damaged_parts(store, index, engine).items():
            path = str(store / name)
            raise FormatError(
                f"token store part {path!r} is damaged ({why}); run the same hbpack tokenize or pack again"
            )
