"""What rendering a conversation gives: its text with ranges, or the reason why there is none."""

from __future__ import annotations

import re
from typing import NamedTuple

Span = tuple[int, int]


class Rendered(NamedTuple):
    """One conversation as text."""

    text: str
    spans: list[Span]
    """Char ranges of `text` that the assistant generated, in order and apart; empty if not asked for."""


class TemplateRejectError(ValueError):
    """The template cannot render this conversation; the text is a reason for people."""


def cannot_render(error: Exception) -> TemplateRejectError:
    """The reject for whatever a template raised."""
    if isinstance(error, TemplateRejectError):
        return error
    return TemplateRejectError(f"the chat template cannot render it: {one_line(error)}")


def one_line(error: Exception) -> str:
    """The error's words on one line of at most 300 chars, or its name if it has none."""
    text = re.sub(r"\s+", " ", str(error)).strip() or type(error).__name__
    return text if len(text) <= 300 else text[:297] + "..."
