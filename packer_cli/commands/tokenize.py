"""`tokenize`: a corpus to a token store."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from packer_cli.commands.output_folder import current_plan, locked_output
from packer_cli.config import TokenizeConfig
from packer_cli.corpus.data_files import by_suffix
from packer_cli.engine.array import ArrayIds, TaskShare
from packer_cli.engine.local import Engine
from packer_cli.engine.output import produce
from packer_cli.engine.progress import Stopwatch, progress_bar, say, warn
from packer_cli.engine.sink import FinishedPart
from packer_cli.errors import InputError, RunError, UsageError
from packer_cli.folder_lock import TaskLock
from packer_cli.format.constants import REJECTED_NAME
from packer_cli.format.metrics import ReasonCount
from packer_cli.format.tokens import InputInfo, SkippedFiles
from packer_cli.remote.path import as_path, is_remote, paths_below
from packer_cli.tokens.accounts import files_of, inputs_of, reasons_of
from packer_cli.tokens.choices import all_rejected, counts, many_rejected, rejected_files, tokenized
from packer_cli.tokens.index import TOKENS, StoreIndex, find_unkept, read_index
from packer_cli.tokens.rejects import store_rejects, write_rejected
from packer_cli.tokens.stage import StoreOutput


@dataclass(frozen=True, kw_only=True)
class Tokenized:
    """Result of `hbpack tokenize`, read from a folder."""

    output: str
    """The folder, as the user named it; the store is its `tokens`."""
    is_complete: bool
    """False after a task of a job array whose other tasks are not done."""
    num_samples: int
    """Samples, or items, in the store."""
    num_tokens: int
    """Tokens in the store."""
    num_loss_tokens: int
    """Tokens that carry a loss."""
    num_rejected: int
    """Rejected records."""
    num_without_loss: int
    """Rejected records in which no token carries a loss."""
    num_with_special: int
    """Records that hold the text of special tokens."""
    num_parts: int
    """Files of the store."""
    skipped: tuple[SkippedFiles, ...] | None = None
    """The files of folders and globs that were not read; None if there were none."""
    sources: tuple[InputInfo, ...] | None = None
    """The inputs, each with its files that were not read, and what was read of the others."""
    reasons: tuple[ReasonCount, ...] | None = None
    """The rejected records by the kind of reason, the most frequent first; None if there are none."""
    not_used: dict[str, int] | None = None
    """Records that hold something which is not used, by the name of the unused part; None if there are none."""
    unit: str = "sample"
    """Unit of the counts of samples: "item" where some hold several, such as a preference pair."""


def describe_store(output: str) -> Tokenized:
    """Describe the token store in a folder."""
    index: StoreIndex | None = None
    with suppress(InputError):  # Other tasks of its array are not done.
        index = read_index(as_path(output) / TOKENS)
    figures = ("num_samples", "num_tokens", "num_loss_tokens", "num_rejected", "num_without_loss", "num_with_special")
    return Tokenized(
        output=output,
        is_complete=index is not None,
        num_parts=len(index.parts) if index else 0,
        skipped=by_suffix(each for source in index.sources for each in source.skipped or ()) if index else None,
        sources=inputs_of(index) if index else None,
        reasons=(reasons_of(files_of(index)) or None) if index else None,
        not_used=(dict(index.unused) or None) if index else None,
        unit=index.unit if index else "sample",
        **{figure: index.total(figure) if index else 0 for figure in figures},
    )


def run_tokenize(
    config: TokenizeConfig, folder: Path, engine: Engine, ids: ArrayIds | None = None
) -> StoreIndex | None:
    """Tokenize a corpus into `folder/tokens`, and write `folder/rejected.jsonl`.

    Args:
        ids: the task of a job array whose share to make. The last task to end completes the store.

    Returns:
        The index; None for a task of an array that could not complete the store.

    Raises:
        RunError: every record was rejected.
    """
    index = produce(CorpusStore(config, folder), engine, ids)
    if index is not None and index.total("num_rejected"):
        if not index.total("num_samples"):
            raise RunError(f"{all_rejected(index)}, see {str(folder / REJECTED_NAME)!r}")
        say(f"rejected records, with reasons: {folder / REJECTED_NAME}")
    return index


class CorpusStore(StoreOutput):
    """The token store of a corpus, in a folder with its rejects. It may have no samples at all."""

    def hold(self, lock: TaskLock | None) -> AbstractContextManager[None]:
        """Lock the folder while the block runs."""
        return locked_output(self.folder, task=lock)

    def make_share(self, engine: Engine, share: TaskShare) -> StoreIndex | None:
        """Write a task's share of the store, and print what came of it."""
        watch = Stopwatch()
        with _undoing(self.folder) if share.is_whole else nullcontext(), progress_bar("Tokenizing") as progress:
            index, num_reused, there = self.write_share(engine, progress, share)
        if index is not None:
            _report(index, num_reused, self.folder, watch)
        return there

    def complete(self, engine: Engine, share: TaskShare, parts: Sequence[Mapping[str, FinishedPart]]) -> StoreIndex:
        """Write the index and the rejects."""
        index = super().complete(engine, share, parts)
        header = current_plan(self.folder, self.folder / TOKENS)
        if header is None or header.store_fingerprint != index.fingerprint:
            # If there is a plan, the file lists its samples too.
            write_rejected(self.folder, partial(store_rejects, index, self.folder / TOKENS))
        for name in find_unkept(self.folder / TOKENS, index):
            warn(f"no record has {name!r}, which --keep-columns names; check the name")
        if not share.is_whole:
            _say_rejected(index, self.folder)
        return index


@contextmanager
def _undoing(folder: Path) -> Iterator[None]:
    """Remove new files from a folder after a usage error: nothing may have been written."""
    before = paths_below(folder)
    try:
        yield
    except UsageError:
        _remove_new(folder, before)
        raise


def _report(index: StoreIndex, num_reused: int, folder: Path, watch: Stopwatch) -> None:
    for text in dict.fromkeys(text for part in index.parts for text in part.warnings):
        warn(text)
    for text in counts(index):
        warn(text)
    for file in (file for part in index.parts for file in part.files if file.unreadable):
        warn(f"{file.path}: {file.unreadable}")
    for line in tokenized(index, num_reused, str(watch)):
        say(line)
    _say_rejected(index, folder)


def _say_rejected(index: StoreIndex, folder: Path) -> None:
    """Print the first rejected record, and why; warn if many records were rejected, or all of a file."""
    lost = rejected_files(index)
    found = (entry for entry in store_rejects(index, folder / TOKENS) if not lost or entry.file == lost[0])
    if (entry := next(found, None)) is not None:
        first = f"{entry.file}:{entry.line}: {entry.reason}"
        many = many_rejected(index, lost)
        if many is None:
            say(f"first rejected: {first}")
        else:
            warn(f"{many}; the first: {first}")


def _remove_new(folder: Path, before: set[Path]) -> None:
    """Remove everything in a folder that was not there before."""
    for path in sorted(paths_below(folder) - before, reverse=True):
        if not is_remote(path) and path.is_dir():
            path.rmdir()
        else:
            path.unlink(missing_ok=True)
