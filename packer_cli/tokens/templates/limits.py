"""Limits on the time and memory of a template, which comes from the same unknown source as the tokenizer."""

from __future__ import annotations

import atexit
import os
import signal
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from packer_cli.tokens.templates.types import TemplateRejectError

Result = TypeVar("Result")

CPU_SECONDS = 10.0
"""CPU time that jinja2 may spend on a conversation. Real templates take 10 us a message."""
FUEL, FUEL_PER_MESSAGE = 10_000, 1_000
"""Instructions that minijinja may spend on a conversation, besides one per char; beyond that, jinja2 takes over. Real
templates take about 100 a message."""
_TICK_SECONDS = 0.1
MAX_REPEATED = 1 << 26
"""Most chars or items that `*` may make, and most bits of a power."""
MAX_PREFIX_MESSAGES = 100_000
"""Most messages to render, over all renders of one conversation, with `prefixes`."""


class TemplateLimitError(TemplateRejectError):
    """The template needs more time or memory than a conversation may take."""


def time_limit_error() -> TemplateLimitError:
    """The error for a conversation that takes too long."""
    return TemplateLimitError(
        "the chat template takes too long to render this conversation; split it, or give another template with "
        "--chat-template FILE"
    )


def limited(render: Callable[[], Result]) -> Result:
    """Call `render` within the limit of CPU time, which holds in the main thread only.

    Raises:
        TemplateLimitError: it took too long. Errors of `render` pass through.
    """
    if threading.get_ident() != threading.main_thread().ident:
        return render()
    _watch.start()
    try:
        return render()
    finally:
        _watch.is_rendering = False


class _Watch:
    """Counts ticks of CPU time. The timer runs on between renders, because setting it would take longer than many
    renders do, and stops at a tick outside any render.
    """

    def __init__(self) -> None:
        self.is_rendering = False
        self._is_ticking = False
        self._ticks = 0

    def start(self) -> None:
        """Begin to watch a render."""
        self._ticks = 0
        self.is_rendering = True
        if not self._is_ticking:
            self._is_ticking = True
            signal.signal(signal.SIGVTALRM, self._tick)
            signal.siginterrupt(signal.SIGVTALRM, False)
            signal.setitimer(signal.ITIMER_VIRTUAL, _TICK_SECONDS, _TICK_SECONDS)

    def _tick(self, *_: Any) -> None:
        self._ticks += 1
        if not self.is_rendering:
            self.stop()
        elif self._ticks * _TICK_SECONDS >= CPU_SECONDS:
            # Raise again at each tick: in places, such as the test `is iterable`, jinja2 swallows any exception.
            raise time_limit_error()

    def stop(self) -> None:
        """Stop the timer."""
        if self._is_ticking:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
            self._is_ticking = False


_watch = _Watch()
atexit.register(_watch.stop)  # A tick that nobody handles would kill the process.
os.register_at_fork(after_in_child=_watch.stop)  # The timer stays with the parent.


def check_operator(operator: str, left: Any, right: Any) -> None:
    """Raise TemplateLimitError if `left * right` or `left ** right` would be huge."""
    if operator == "**":
        size = left.bit_length() * abs(right) if type(left) is int and type(right) is int else 0
    else:
        if type(left) is int:
            left, right = right, left
        size = len(left) * right if isinstance(left, (str, list, tuple)) and type(right) is int else 0
    if size > MAX_REPEATED:
        raise TemplateLimitError(
            f"the chat template makes more than {MAX_REPEATED:,} items with {operator}; split the conversation, or "
            "give another template with --chat-template FILE"
        )
