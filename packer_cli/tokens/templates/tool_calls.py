"""The tool calls of a turn, which follow its content; some templates leave out the content beside them."""

from __future__ import annotations

from typing import Any

from packer_cli.tokens.templates.blanks import after_space, before_space
from packer_cli.tokens.templates.types import Span, TemplateRejectError


def find_calls(text: str, start: int, end: int, content: str, names: list[str], number: int) -> Span:
    """Where the calls of functions with these names are in a turn; empty, at its end, if there are none.

    Args:
        content: which they follow; empty if the text has none.
        number: of the message, for errors.

    Raises:
        TemplateRejectError: it is not certain where they begin, or they are missing.
    """
    if not names:
        return end, end
    first = after_space(text, start, end)
    if content:
        if not text.startswith(content, first, end):
            raise TemplateRejectError(
                f"the chat template does not write the content of message {number} first, so where its tool calls "
                "begin is not certain"
            )
        first = after_space(text, first + len(content), end)
    at = first
    for name in names:
        at = text.find(name, at, end) if name else -1
        if at < 0:
            raise TemplateRejectError(f"the chat template does not write the tool calls of message {number}")
        at += len(name)
    return first, before_space(text, first, end)


def names_called(message: dict[str, Any]) -> list[str]:
    """The names of the functions that the message calls."""
    calls = message.get("tool_calls") or [message.get("function_call")]
    if not isinstance(calls, list):
        return [""]
    return [_name(call) for call in calls if call]


def _name(call: Any) -> str:
    inner = call.get("function") or call if isinstance(call, dict) else {}
    name = inner.get("name") if isinstance(inner, dict) else None
    return name if isinstance(name, str) else ""


def with_other_contents(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The messages, with a longer content in those of the assistant that have one and call tools."""
    return [
        {**message, "content": _longer(message["content"])}
        if message.get("role") == "assistant" and message.get("content") and names_called(message)
        else message
        for message in messages
    ]


def _longer(content: Any) -> Any:
    """The content with more text at the end, where it is the answer and not reasoning."""
    if isinstance(content, list):
        return [{**part, "text": _longer(part["text"])} if "text" in part else part for part in content]
    return f"{content} And more."
