"""Bounds on what a template may do: it comes from wherever the tokenizer came from."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from packer_cli.tokens.templates.types import TemplateRejectError

Result = TypeVar("Result")

CPU_SECONDS = 10.0
"""CPU time that jinja2 may spend on a conversation. Real templates take 10 us a message."""
FUEL, FUEL_PER_MESSAGE = 10_000, 1_000
"""Instructions that minijinja may spend on a conversation, besides one for each char. Real templates take about 100 a
message. What needs more goes to jinja2."""
MAX_REPEATED = 1 << 26
"""Chars or items that `*` may make, and bits of a power."""
MAX_PREFIX_MESSAGES = 100_000
"""Messages that may be rendered to find out who said what in one conversation, where that takes many renders."""


class TemplateLimitError(TemplateRejectError):
    """The template asks for more time or memory than a conversation may take."""


def over_time() -> TemplateLimitError:
    """The reject for a conversation that takes too long."""
    return TemplateLimitError(
        "the chat template takes too long to render it; split the conversation, or give another template with "
        "--chat-template FILE"
    )


def limited(render: Callable[[], Result]) -> Result:
    """What `render` gives, within the limit of CPU time. Only the main thread can be interrupted.

    Raises: TemplateLimitError, and whatever `render` raises.
    """
    if threading.current_thread() is not threading.main_thread():
        return render()
    before = signal.signal(signal.SIGVTALRM, _interrupt)
    # Again and again: jinja2 swallows any exception in places, as in the test `is iterable`.
    signal.setitimer(signal.ITIMER_VIRTUAL, CPU_SECONDS, 0.1)
    try:
        return render()
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def _interrupt(*_: Any) -> None:
    raise over_time()


def check_operator(operator: str, left: Any, right: Any) -> None:
    """Raises: TemplateLimitError where `left * right` or `left ** right` would be huge."""
    if operator == "**":
        size = left.bit_length() * abs(right) if type(left) is int and type(right) is int else 0
    else:
        if type(left) is int:
            left, right = right, left
        size = len(left) * right if isinstance(left, (str, list, tuple)) and type(right) is int else 0
    if size > MAX_REPEATED:
        raise TemplateLimitError(
            f"the chat template cannot render it: {operator} makes more than {MAX_REPEATED} items"
        )
