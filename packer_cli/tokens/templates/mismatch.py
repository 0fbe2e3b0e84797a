"""Compares a rendered conversation with slower ways to render it."""

from __future__ import annotations

from typing import Any

from packer_cli.tokens.templates.compiled import CompiledTemplate
from packer_cli.tokens.templates.types import Rendered, TemplateRejectError

CHECKED_MESSAGES = 64
"""Most messages of a conversation to compare, which bounds the price of long ones."""
_CHECKED_ANSWERS = 4
"""About how many of the assistant's messages, spread over these, to compare the ranges of."""


def text_mismatch(template: CompiledTemplate, context: dict[str, Any], text: str) -> str | None:
    """The difference from the text that transformers renders; None if they are equal."""
    from transformers.utils.chat_template_utils import render_jinja_template

    try:
        whole: str = render_jinja_template(
            [context["messages"]], tools=context["tools"], chat_template=template.source, **template.variables
        )[0][0]
    except Exception:
        return "transformers cannot render this conversation"
    if text != whole:
        return "the text differs from transformers'"
    return None


def ranges_mismatch(
    template: CompiledTemplate, context: dict[str, Any], rendered: Rendered, closers: tuple[str, ...]
) -> str | None:
    """The difference between the ranges and those of shorter renders, see `ChatRenderer.mismatch`; None if they agree.

    Args:
        closers: see `TurnEdges`.
    """
    whole = rendered.text
    messages = context["messages"][:CHECKED_MESSAGES]
    stops = dict(rendered.spans)
    answers = [i for i, message in enumerate(messages) if i and message.get("role") == "assistant"]
    for position in answers[:: max(1, len(answers) // _CHECKED_ANSWERS)]:
        try:
            start = template.text(context, messages=messages[:position], add_generation_prompt=True)
            stop = template.text(context, messages=messages[: position + 1])
        except TemplateRejectError:
            continue
        if not whole.startswith(start) or not whole.startswith(stop) or len(stop) <= len(start):
            continue
        at = len(start)
        if at not in stops:
            return f"message {position + 1}: the assistant's text should begin at char {at}"
        low, high = sorted((stops[at], len(stop)))
        if whole[low:high].strip() and not whole[low:high].strip().startswith(closers or ("\0",)):
            return f"message {position + 1}: the assistant's text should end at char {len(stop)}"
    return None
