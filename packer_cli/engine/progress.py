"""Progress of a stage: lines, sent to the `hbpack` logger, and bars.

Nothing is printed here. The command line shows both (`packer_cli.cli.console`); a program that calls the stages
configures logging as it likes.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import Protocol

from packer_cli.remote.retries import take_failures
from packer_cli.sizes import counted

LOGGER = logging.getLogger("hbpack")


class Progress(Protocol):
    """Shows how far a stage is."""

    def __call__(self, done: int, total: int, what: str = "") -> None:
        """Show it.

        Args:
            what: is being done; it stands after the label.
        """


ShowBar = Callable[[str, str], AbstractContextManager[Progress]]
"""(label, unit) -> a context manager that gives a `Progress`"""


_subject = ContextVar("subject", default="")


@contextmanager
def naming(subject: str) -> Iterator[None]:
    """Begin each line of the block with what it is about."""
    before = _subject.set(f"{subject}: ")
    try:
        yield
    finally:
        _subject.reset(before)


def say(text: str, **facts: object) -> None:
    """Log a line about what was done; `facts` are what it says, for programs that read the lines."""
    LOGGER.info("%s%s", _subject.get(), text, extra={"facts": facts})


def warn(text: str) -> None:
    """Log a warning."""
    LOGGER.warning("%s%s", _subject.get(), text)


@contextmanager
def _no_bar(label: str, unit: str) -> Iterator[Progress]:
    yield lambda done, total, what="": None


_show_bar: ShowBar = _no_bar


def show_bars(show: ShowBar) -> None:
    """Set how this process shows bars."""
    global _show_bar
    _show_bar = show


def on_progress(callback: Callable[[str, int, int, str], None]) -> None:
    """Call a function with (stage, done, total, unit) as stages go on, in place of showing bars.

    It is called in the thread of the function that works, such as `pack`. If it raises an exception, that function
    stops as with Ctrl-C, and raises it; what is written stays, and the same call goes on from there.

    Args:
        callback: a function of the stage, such as `"Tokenizing"`, what is done, the total, and the unit of both.
    """

    @contextmanager
    def show(label: str, unit: str) -> Iterator[Progress]:
        yield lambda done, total, what="": callback(label, done, total, unit)

    show_bars(show)


@contextmanager
def progress_bar(label: str, *, unit: str = "bytes") -> Iterator[Progress]:
    """Show a progress bar; call the value of the block with (done, total). At last, say which requests failed."""
    try:
        with _show_bar(label, unit) as progress:
            yield progress
    finally:
        say_failures(label)


def say_failures(label: str) -> None:
    """Say how many requests to remote storage have failed since the last call, and were sent again."""
    failures = take_failures()
    if failures:
        number = sum(failures.values())
        answers = ", ".join(f"{answer}: {times:,}" for answer, times in failures.items())
        say(f"{label}: {counted(number, 'failed request')} to storage, sent again ({answers})", retries=number)


class Stopwatch:
    """Seconds since its creation, as text such as `1.5 s`."""

    def __init__(self) -> None:
        self._start = time.perf_counter()

    def __str__(self) -> str:
        return f"{time.perf_counter() - self._start:.1f} s"
