"""A stage as a task of a job array: a share under its own lock; the last task to end completes the output."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

from packer_cli.engine.array import ArrayIds, ArrayRecords, ArrayShare, ArrayTask
from packer_cli.engine.base import Engine
from packer_cli.engine.local import LocalEngine, default_workers
from packer_cli.engine.parts import remove_work
from packer_cli.engine.processes import process_context
from packer_cli.engine.progress import say
from packer_cli.errors import BusyError, ConfigError, InputError
from packer_cli.folders import TaskLock, add_note, find_holders
from packer_cli.kernels import choose_cache
from packer_cli.tokens.ahead import NamedTokenizer, settings_for
from packer_cli.tokens.index import INDEX_NAME
from packer_cli.tokens.part import WORK

Hold = Callable[[TaskLock | None], AbstractContextManager[None]]
"""Checks the output folder, and locks it for a task, or for this run alone."""


@contextmanager
def array_share(
    stage: str, folder: Path, records: ArrayRecords, task: ArrayTask, ids: ArrayIds, hold: Hold
) -> Iterator[ArrayShare]:
    """Lock the output folder for a task while the block makes its share.

    Raises:
        BusyError: another process runs the same task, or another stage or an ordinary run writes to the folder.
    """
    lock = TaskLock(stage, task.index)

    def joined() -> list[str]:
        return [holder.note for holder in find_holders(folder) if holder.task != lock]

    with hold(lock):
        yield ArrayShare(records, task, ids, lambda fingerprint: add_note(folder, lock, fingerprint), joined)


def complete_array(records: ArrayRecords, hold: Hold, complete: Callable[[], None]) -> bool:
    """Complete an output if all tasks of its array are done; False if one is missing, or runs at this moment.

    A task that runs does the same when it ends, so the last one to end completes the output. The records go last, so
    that a run that is killed is followed by one that completes the output again.
    """
    if not records.is_complete():
        return False
    try:
        with hold(None):
            if records.parts() is None:  # Another run has completed it, or a record is damaged.
                return records.pin() is None
            complete()
            remove_work(records.work)
    except BusyError:
        return False
    return True


def remove_rest(records: ArrayRecords, listing: Path, hold: Hold) -> None:
    """Remove the records that a run which had completed the output left when it was killed.

    Args:
        listing: what vouches for the output if it is complete.
    """
    if records.work.exists():
        with suppress(BusyError), hold(None):  # A task that runs does the same when it ends.
            if records.pin() is None and listing.exists():
                remove_work(records.work)


def require_tokens(store: Path) -> None:
    """Raise InputError if an array that makes this token store has not ended, and no earlier store is there."""
    if not (store / INDEX_NAME).exists() and (rest := ArrayRecords(store / WORK).unfinished()):
        raise InputError(f"the token store {str(store)!r} is unfinished: {rest}")


def say_done(records: ArrayRecords, task: ArrayTask) -> None:
    """Say how many tasks of an array are done."""
    done = len(records.done())
    rest = "the last one to end completes the output" if done == task.num_tasks else "hbpack status says which are not"
    say(f"task {task} is done; {done:,} of {task.num_tasks:,} tasks are done, {rest}")


PRELOAD = ("packer_cli.tokens.preload",)


def start_server(tokenizer: NamedTokenizer) -> None:
    """Start what the workers of `make_engine()` are forked from, ahead of it.

    Args:
        tokenizer: what they will use; the server loads it once, for all of them.

    Raises:
        RunError: it cannot be started.
    """
    choose_cache()  # The server inherits it.
    if default_workers() > 1:
        process_context(PRELOAD, settings_for(tokenizer))


def make_engine(
    workers: int | None = None,
    name: str = "local",
    preload: Sequence[str] = PRELOAD,
    tokenizer: NamedTokenizer | None = None,
) -> Engine:
    """An engine for all stages. Enter it before the imports of the stages: its workers load at the same time.

    Args:
        name: `local`, `ray` or `ray:ADDRESS`.
        preload: modules that workers import before they start.
        tokenizer: see `start_server`.

    Raises:
        ConfigError: there is no such engine.
    """
    choose_cache()  # Workers inherit it.
    kind, colon, address = name.partition(":")
    if kind == "ray" and bool(colon) == bool(address):
        from packer_cli.engine.ray import RayEngine

        return RayEngine(address or None, workers, preload)
    if name != "local":
        raise ConfigError(f"--engine: unknown engine {name!r}; choose local, ray or ray:ADDRESS")
    settings = None if tokenizer is None else settings_for(tokenizer)
    return LocalEngine(workers or default_workers(), preload, settings=settings)
