"""What a stage tells while it runs: lines, by `logging` under the name `hbpack`, and bars.

Nothing is printed here. The command line shows both (`packer_cli.cli.console`); a program that calls the stages
configures logging as it likes.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

LOGGER = logging.getLogger("hbpack")

Progress = Callable[[int, int], None]
"""(done, total)"""
ShowBar = Callable[[str, str], AbstractContextManager[Progress]]
"""(label, unit) -> what is told of the progress"""


def say(text: str) -> None:
    """A line about what was done."""
    LOGGER.info("%s", text)


def warn(text: str) -> None:
    """A warning."""
    LOGGER.warning("%s", text)


@contextmanager
def _no_bar(label: str, unit: str) -> Iterator[Progress]:
    yield lambda done, total: None


_show_bar: ShowBar = _no_bar


def show_bars(show: ShowBar) -> None:
    """Have all bars of this process shown in this way."""
    global _show_bar
    _show_bar = show


def progress_bar(label: str, *, unit: str = "bytes") -> AbstractContextManager[Progress]:
    """A bar that is told (done, total)."""
    return _show_bar(label, unit)


class Stopwatch:
    """Seconds since it was made."""

    def __init__(self) -> None:
        self._start = time.perf_counter()

    def __str__(self) -> str:
        return f"{time.perf_counter() - self._start:.1f} s"
