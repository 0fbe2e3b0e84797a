"""The chain of the stages: tokenize -> plan -> write. The only place that knows them all."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packer_cli.config import PackConfig, PlanConfig, TokenizeConfig, WriteConfig
from packer_cli.engine.local import LocalEngine
from packer_cli.errors import FormatError, HbpackError, InputError, OutputError, UsageError
from packer_cli.files import atomic_file
from packer_cli.report.console import Stopwatch, progress_bar, say, warn
from packer_cli.shards.manifest import MANIFEST_NAME, Manifest, read_manifest
from packer_cli.shards.plan_file import PLAN_NAME, read_plan_header

if TYPE_CHECKING:
    from packer_cli.tokens.store import StoreIndex

TOKENS = "tokens"
REJECTED_NAME = "rejected.jsonl"
_OWN = (MANIFEST_NAME, PLAN_NAME, TOKENS)


def run_pack(config: PackConfig, folder: Path, workers: int, *, dry_run: bool = False) -> dict[str, Any]:
    """Corpus to shards. Gives the plan's header (configuration, counts, metrics)."""
    check_output(folder)
    run_tokenize(config.part(TokenizeConfig), folder, workers)
    header = run_plan(config.part(PlanConfig), folder, folder)
    if not dry_run:
        run_write(config.part(WriteConfig), folder, workers)
    return header


def run_tokenize(config: TokenizeConfig, folder: Path, workers: int) -> StoreIndex:
    """Corpus to `folder/tokens`."""
    from packer_cli.tokens.stage import PRELOAD, tokenize

    check_output(folder)
    was_there = folder.exists()
    watch = Stopwatch()
    try:
        with LocalEngine(workers, PRELOAD) as engine, progress_bar("Tokenizing") as progress:
            index = tokenize(config, folder / TOKENS, engine, progress)
    except UsageError:
        _remove_empty(folder, itself=not was_there)
        raise
    num_samples = sum(part.num_samples for part in index.parts)
    num_tokens = sum(part.num_tokens for part in index.parts)
    num_rejected = sum(part.num_rejected for part in index.parts)
    for text in dict.fromkeys(text for part in index.parts for text in part.warnings):
        warn(text)
    say(
        f"tokenized {num_samples + num_rejected:,} records: {num_samples:,} samples, {num_tokens:,} tokens, "
        f"{num_rejected:,} rejected ({watch})"
    )
    num_special = sum(part.num_with_special for part in index.parts)
    if num_special:
        how = "as ordinary text" if config.plain_content else "as control tokens (see --plain-content)"
        say(f"{num_special:,} records hold the text of special tokens, encoded {how}")
    return index


def run_plan(config: PlanConfig, source: Path, folder: Path) -> dict[str, Any]:
    """Token store in `source/tokens` to `folder/plan.arrow`, and `folder/rejected.jsonl`."""
    from packer_cli.planning import plan_fingerprint, plan_rules, plan_store
    from packer_cli.shards.plan_file import write_plan
    from packer_cli.tokens.store import TokenStore, read_index

    check_output(folder)
    watch = Stopwatch()
    plan_rules(config)
    index = read_index(source / TOKENS)
    weights = [item.weight for item in index.sources]
    wanted = plan_fingerprint(config, index.fingerprint, weights)
    header = _current_plan(folder)
    if header and header["fingerprint"] == wanted and (folder / REJECTED_NAME).exists():
        say("the plan is up to date")
        return header
    result = plan_store(config, TokenStore(source / TOKENS, index), folder)
    (folder / MANIFEST_NAME).unlink(missing_ok=True)
    _write_rejected(folder / REJECTED_NAME, index, source / TOKENS, result.overflow)
    write_plan(folder / PLAN_NAME, result.plan, result.piece_loss_tokens, result.header)
    overall = result.header["metrics"]["overall"]
    say(
        f"planned {overall['num_packs']:,} packs, {overall['num_iterations']:,} iterations, "
        f"{overall['num_steps']:,} steps ({watch})"
    )
    return result.header


def run_write(config: WriteConfig, folder: Path, workers: int) -> Manifest:
    """The plan in `folder` to shards, rank manifests and `hbpack.json`."""
    from packer_cli.shards.stage import PRELOAD, set_fingerprint, write_set

    watch = Stopwatch()
    header = read_plan_header(folder / PLAN_NAME)
    store = folder / header["store"]
    manifest = _current_manifest(folder)
    wanted = set_fingerprint(header["fingerprint"], config.shard_size)
    if manifest and manifest.fingerprint == wanted and _is_whole(folder, manifest):
        say("the shards are up to date")
        _drop_tokens(config, folder, store)
        return manifest
    with LocalEngine(workers, PRELOAD) as engine, progress_bar("Writing", unit="tokens") as progress:
        _check_store(store, header)
        manifest = write_set(config, folder, store, engine, progress)
    shards = [shard for group in manifest.groups for shard in group.shards]
    num_bytes = sum(shard.num_bytes for shard in shards)
    say(
        f"wrote {len(shards)} shards, {num_bytes / 2**20:,.0f} MiB, and manifests for {manifest.num_gpus} ranks "
        f"({watch})"
    )
    _drop_tokens(config, folder, store)
    return manifest


def check_output(folder: Path) -> None:
    """Refuse a folder that holds what hbpack did not write.

    Raises:
        OutputError
    """
    if not folder.exists():
        return
    if not folder.is_dir():
        raise OutputError(f"output {str(folder)!r} is a file; name a folder")
    entries = sorted(entry.name for entry in folder.iterdir())
    if entries and not any(name in entries for name in _OWN):
        raise OutputError(
            f"output folder {str(folder)!r} holds something else ({', '.join(entries[:3])}); "
            "name an empty or a new folder"
        )


def _current_plan(folder: Path) -> dict[str, Any] | None:
    try:
        return read_plan_header(folder / PLAN_NAME)
    except HbpackError:
        return None


def _current_manifest(folder: Path) -> Manifest | None:
    try:
        return read_manifest(folder)
    except HbpackError:
        return None


def _is_whole(folder: Path, manifest: Manifest) -> bool:
    """Whether every file of the set is there, by its size."""
    for group in manifest.groups:
        for shard in group.shards:
            path = folder / shard.path
            if not path.exists() or path.stat().st_size != shard.num_bytes:
                return False
    return all(
        (folder / epoch.path / f"rank-{rank:05d}.arrow").exists()
        for epoch in manifest.epochs
        for rank in range(manifest.num_gpus)
    )


def _check_store(store: Path, header: dict[str, Any]) -> None:
    from packer_cli.tokens.store import read_index

    if not store.is_dir():
        raise InputError(f"the plan's token store {str(store)!r} is gone; run hbpack tokenize and hbpack plan again")
    if read_index(store).fingerprint != header["store_fingerprint"]:
        raise FormatError(f"the token store {str(store)!r} has changed since the plan was made; run hbpack plan again")


def _write_rejected(path: Path, index: StoreIndex, store: Path, overflow: list[dict[str, Any]]) -> None:
    from packer_cli.tokens.part import read_rejects, rejects_path

    with atomic_file(path) as file:
        for part in index.parts:
            if part.num_rejected:
                for reject in read_rejects(rejects_path(store, part.path)):
                    file.write(_json_line({"file": part.file, "line": reject.line, "reason": reject.reason}))
        for entry in overflow:
            file.write(_json_line(entry))


def _json_line(entry: dict[str, Any]) -> bytes:
    return (json.dumps(entry, ensure_ascii=False) + "\n").encode("utf-8", "backslashreplace")


def _drop_tokens(config: WriteConfig, folder: Path, store: Path) -> None:
    """Remove the token store if asked, but only one that is the output's own."""
    if not config.keep_tokens and store.resolve() == (folder / TOKENS).resolve():
        shutil.rmtree(store, ignore_errors=True)


def _remove_empty(folder: Path, *, itself: bool) -> None:
    """After a usage error nothing may have been written: remove folders that were made on the way."""
    if not folder.is_dir():
        return
    inner = sorted((path for path in folder.rglob("*") if path.is_dir()), reverse=True)
    for path in [*inner, *([folder] if itself else [])]:
        if not any(path.iterdir()):
            path.rmdir()
