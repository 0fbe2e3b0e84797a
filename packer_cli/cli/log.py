"""Lines on stderr: what the stages say, warnings, errors, and progress where no bar is shown."""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import copy_context
from datetime import UTC, datetime

import click

from packer_cli.engine.progress import Progress, say
from packer_cli.errors import printable
from packer_cli.sizes import duration, format_bytes, large

FORMATS = ("text", "json")
"""Formats of lines that have time and level."""
PROGRESS_SECONDS = 30.0
"""Seconds between lines of progress."""
_COLORS = {"error": "red", "warning": "yellow"}


class LogLines(logging.Handler):
    """Handler that prints lines on stderr, above the bar if there is one."""

    form: str | None = None
    """One of `FORMATS`; None for people, who see no time and no level but that of warnings and errors."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print a line."""
        level, text = record.levelname.lower(), printable(record.getMessage())
        if self.form is None and level in _COLORS:
            _print_colored(f"{level}: ", _COLORS[level], text)
            return
        if self.form is not None:
            text = _with_time(self.form, record, level, text)
        print(text, file=sys.stderr, flush=True)  # Click would write over the bar.


LINES = LogLines()
"""The handler of the command line."""


def _print_colored(word: str, color: str, text: str) -> None:
    """Print a line on stderr. Its first word is colored if stderr is a terminal and NO_COLOR is not set."""
    plain = False if os.environ.get("NO_COLOR") else None
    click.echo(click.style(word, fg=color, bold=True) + text, err=True, color=plain)


def _with_time(form: str, record: logging.LogRecord, level: str, text: str) -> str:
    when = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    if form == "text":
        return f"{when} {level.upper()} {text}"
    return json.dumps({"time": when, "level": level, "message": text, **getattr(record, "facts", {})})


@contextmanager
def progress_lines(label: str, unit: str) -> Iterator[Progress]:
    """Say every half minute how far a stage is."""
    begin, has_ended = time.monotonic(), threading.Event()
    calls: list[tuple[int, int, str]] = []

    def show(done: int, total: int, what: str = "") -> None:
        calls[1:] = [(done, total, what)]

    def tell() -> None:
        while not has_ended.wait(PROGRESS_SECONDS):
            first, last = calls[:1] or [(0, 0, "")], calls[-1:] or [(0, 0, "")]
            _say_progress(f"{label} {last[0][2]}".rstrip(), unit, first[0][0], *last[0][:2], time.monotonic() - begin)

    # The context has the subject that lines begin with.
    teller = threading.Thread(target=copy_context().run, args=(tell,), name="hbpack-progress", daemon=True)
    teller.start()
    try:
        yield show
    finally:
        has_ended.set()
        teller.join()


def _say_progress(stage: str, unit: str, first: int, done: int, total: int, seconds: float) -> None:
    """Say how far a stage is.

    Args:
        first: done by earlier runs.
    """
    rate = (done - first) / seconds
    left = (total - done) / rate if rate else None
    of_total = f"{_amount(done, unit)} of {_amount(total, unit)} ({done / total:.0%}), " if total else ""
    speed = f"{_amount(rate, unit)}/s, {duration(left)} left" if left is not None else f"{duration(seconds)} so far"
    facts = {"stage": stage, "done": done, "total": total, "unit": unit, "seconds": round(seconds, 1)}
    say(f"{stage}: {of_total}{speed}", **facts, seconds_left=None if left is None else round(left, 1))


def _amount(number: float, unit: str) -> str:
    return format_bytes(number) if unit == "bytes" else f"{large(round(number))} {unit}"
