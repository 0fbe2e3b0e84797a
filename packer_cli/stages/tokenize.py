"""The tokenize stage: a corpus to a token store."""

from __future__ import annotations

from pathlib import Path

from packer_cli.config import TokenizeConfig
from packer_cli.engine.base import Engine
from packer_cli.engine.progress import Stopwatch, progress_bar, say, warn
from packer_cli.errors import RunError, UsageError
from packer_cli.format.constants import REJECTED_NAME
from packer_cli.stages.output import TOKENS, current_plan, locked_output
from packer_cli.stages.rejected import first_rejected, write_rejected
from packer_cli.tokens.choices import repeated, tokenized
from packer_cli.tokens.index import StoreIndex
from packer_cli.tokens.stage import tokenize


def run_tokenize(config: TokenizeConfig, folder: Path, engine: Engine) -> StoreIndex:
    """Tokenize a corpus into `folder/tokens`, and write `folder/rejected.jsonl`.

    Raises:
        RunError: every record was rejected.
    """
    with locked_output(folder):
        index = tokenize_corpus(config, folder, engine)
    if any(part.num_rejected for part in index.parts):
        if not any(part.num_samples for part in index.parts):
            raise RunError(f"every record was rejected, see {str(folder / REJECTED_NAME)!r}")
        say(f"rejected records, with reasons: {folder / REJECTED_NAME}")
    return index


def tokenize_corpus(config: TokenizeConfig, folder: Path, engine: Engine) -> StoreIndex:
    """Like `run_tokenize`, but without an error if every record was rejected, and without a lock."""
    before = {path for path in [folder, *folder.rglob("*")] if path.exists()}
    watch = Stopwatch()

    try:
        with progress_bar("Tokenizing") as progress:
            index, num_reused = tokenize(config, folder / TOKENS, engine, progress)
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
    for line in tokenized(index, num_reused, str(watch)):
        say(line)
    rejected = first_rejected(index, folder / TOKENS)
    if rejected is not None:
        say(f"first rejected: {rejected}")
    header = current_plan(folder, folder / TOKENS)
    if header is None or header.store_fingerprint != index.fingerprint:
        write_rejected(folder, index, folder / TOKENS, [])  # If there is a plan, the file lists its samples too.
    return index


def _remove_new(folder: Path, before: set[Path]) -> None:
    """Remove what was not there before: after a usage error, nothing may have been written."""
    for path in sorted({folder, *folder.rglob("*")} - before, reverse=True):
        if path.is_dir():
            path.rmdir()
        else:
            path.unlink(missing_ok=True)
