"""Ranges from shorter renders: message i begins where the text of `messages[:i]` ends.

The price is quadratic, so conversations of more than a few hundred messages are rejected.
"""

from __future__ import annotations

from typing import Any

from packer_cli.tokens.templates.compiled import CompiledTemplate
from packer_cli.tokens.templates.limits import MAX_PREFIX_MESSAGES, TemplateLimitError
from packer_cli.tokens.templates.types import Span, TemplateRejectError


def prefix_rounds(template: CompiledTemplate, context: dict[str, Any]) -> tuple[str, list[Span]]:
    """The text, and the char ranges of the assistant's messages, in order.

    Raises:
        TemplateLimitError: too many messages.
        TemplateRejectError: the template raised, or writes a message differently once others follow.
    """
    messages = context["messages"]
    edges = _edges(messages)
    if sum(edges) > MAX_PREFIX_MESSAGES:
        raise TemplateLimitError(
            f"the chat template does not show who said what without rendering the beginning of the conversation again "
            f"for each answer, and {len(messages)} messages are too many for that; mark the answers with "
            "{% generation %} in the template, or split the conversation"
        )
    text = template.text(context)
    ends = {count: _prefix_end(template, text, context, count) for count in edges}
    ends[len(messages)] = len(text)
    rounds = [
        (ends[position], ends[position + 1])
        for position, message in enumerate(messages)
        if message.get("role") == "assistant" and ends[position + 1] > ends[position]
    ]
    return text, rounds


def _edges(messages: list[dict[str, Any]]) -> list[int]:
    """Lengths of the prefixes that end just before or just after an assistant message, except the whole."""
    spoken = [position for position, message in enumerate(messages) if message.get("role") == "assistant"]
    return sorted({*spoken, *(position + 1 for position in spoken)} - {len(messages)})


def _prefix_end(template: CompiledTemplate, text: str, context: dict[str, Any], count: int) -> int:
    """The char at which the first `count` messages end in the text of the whole conversation."""
    try:
        prefix = template.text(context, messages=context["messages"][:count])
    except TemplateRejectError:
        if count == 0:
            prefix = "" if text else "?"
        else:
            raise
    if not text.startswith(prefix):
        # Perhaps only the end differs, as in templates that close the last turn in another way.
        prefix = prefix.rstrip()
        if not prefix or not text.startswith(prefix):
            raise TemplateRejectError(
                "the chat template writes earlier messages differently as the conversation goes on, so the "
                "assistant's text cannot be told from the rest; mark it with {% generation %} in the template"
            )
    return len(prefix)
