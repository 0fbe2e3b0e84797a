"""The results of rendering a conversation: its text with ranges, or the reason why it cannot be rendered."""

from __future__ import annotations

import re
from typing import NamedTuple

Span = tuple[int, int]


class Rendered(NamedTuple):
    """One conversation as text."""

    text: str
    spans: list[Span]
    """Char ranges of `text` that the assistant generated, in order and disjoint; empty if not requested."""


class TemplateRejectError(ValueError):
    """The template cannot render this conversation; the message gives the reason."""


def cannot_render(error: Exception) -> TemplateRejectError:
    """The rejection for an error that a template raised."""
    if isinstance(error, TemplateRejectError):
        return error
    return TemplateRejectError(f"the chat template cannot render this conversation: {one_line(error)}")


def one_line(error: Exception) -> str:
    """The error's message on one line of at most 300 chars, or its type's name if it has none."""
    text = re.sub(r"\s+", " ", str(error)).strip() or type(error).__name__
    return text if len(text) <= 300 else text[:297] + "..."
