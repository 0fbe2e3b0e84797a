"""Ranges from shorter renders: where the text of `messages[:i]` ends, message i begins. Quadratic."""

from __future__ import annotations

from typing import Any

from packer_cli.tokens.templates.compiled import CompiledTemplate
from packer_cli.tokens.templates.types import Span, TemplateRejectError


def prefix_rounds(template: CompiledTemplate, context: dict[str, Any]) -> tuple[str, list[Span]]:
    """The text, and the char ranges that the assistant messages wrote, in order.

    Raises: TemplateRejectError (a template that raises, or that writes earlier messages differently later on).
    """
    text = template.text(context)
    messages = context["messages"]
    rounds: list[Span] = []
    for position, message in enumerate(messages):
        if message.get("role") != "assistant":
            continue
        start = _prefix_end(template, text, context, position)
        stop = len(text) if position + 1 == len(messages) else _prefix_end(template, text, context, position + 1)
        if stop > start:
            rounds.append((start, stop))
    return text, rounds


def _prefix_end(template: CompiledTemplate, text: str, context: dict[str, Any], count: int) -> int:
    """Where the first `count` messages end in the text of the whole conversation."""
    try:
        prefix = template.text(context, messages=context["messages"][:count])
    except TemplateRejectError:
        if count == 0:
            prefix = "" if text else "?"
        else:
            raise
    if not text.startswith(prefix):
        # Only the end may differ, as in templates that close the last turn in another way.
        prefix = prefix.rstrip()
        if not prefix or not text.startswith(prefix):
            raise TemplateRejectError(
                "the chat template writes earlier messages differently as the conversation goes on, so the "
                "assistant's text cannot be told from the rest; mark it with {% generation %} in the template"
            )
    return len(prefix)
