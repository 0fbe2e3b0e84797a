"""The reasoning at the beginning of a turn: between the tags of `TAGS`, whether from a field or from the content."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from packer_cli.tokens.templates.conversation import REASONING_FIELDS
from packer_cli.tokens.templates.types import TemplateRejectError


class _Tags(NamedTuple):
    opening: str
    closing: str
    ends_turns: bool = False
    """Whether the closing tag also ends turns, so that it means nothing without the other."""


TAGS = (
    _Tags("<think>", "</think>"),
    _Tags("[THINK]", "[/THINK]"),
    _Tags("<seed:think>", "</seed:think>"),
    _Tags("<|channel|>analysis<|message|>", "<|end|>", ends_turns=True),
)
"""Tags around the reasoning: of Qwen3, DeepSeek and most others; Magistral; Seed-OSS; gpt-oss."""
_LOOK_BACK = 64
"""Chars before a turn in which an opening tag may end that belongs to the generation prompt."""


def find_reasoning(
    text: str, start: int, end: int, message: dict[str, Any], number: int, is_written: Callable[[], bool]
) -> tuple[int, str]:
    """Where the reasoning of a turn ends, with its closing tag, and what it says; `start` if there is none.

    Args:
        message: that of the turn; empty if it is not known.
        number: of the message, for errors; 0: there is none.
        is_written: whether the template writes the field of the message; asked only where the tags do not say it.

    Raises:
        TemplateRejectError: it is not certain where it ends.
    """
    field = field_of(message, number)
    where = f"message {number}" if number else "the text"
    for opening, closing, ends_turns in TAGS:
        first = after_space(text, start, end)
        begins_inside = text[max(0, start - _LOOK_BACK) : start].rstrip().endswith(opening)
        is_opened = text.startswith(opening, first, end)
        if not (begins_inside or is_opened or (not ends_turns and text.startswith(closing, first, end))):
            for tag in (opening,) if ends_turns else (opening, closing):
                if text.find(tag, start, end) >= 0:
                    raise TemplateRejectError(f"{where} has {tag} in the middle, so what is reasoning is not certain")
            continue
        inner = first + len(opening) if is_opened else first
        past = text.find(closing, inner, end)
        if past < 0:
            raise TemplateRejectError(f"{where} has {opening} without {closing}, so what is reasoning is not certain")
        thought = text[inner:past].strip()
        past += len(closing)
        for tag in (opening, closing):
            if tag in thought or text.find(tag, past, end) >= 0:
                raise TemplateRejectError(f"{where} has {tag} more than once, so what is reasoning is not certain")
        # A tag of the content may seem to end in the arguments of a tool call.
        if (field and field != thought) or (message and not any(thought in text for text in _texts(message))):
            raise TemplateRejectError(
                f"the chat template writes something between {opening} and {closing} that is not the reasoning of "
                f"{where}"
            )
        return past, thought
    if field and text.count(field, start, end) > content_of(message).count(field) and is_written():
        known = ", ".join(f"{tags.opening} and {tags.closing}" for tags in TAGS)
        raise TemplateRejectError(
            f"the chat template writes the reasoning of {where} without tags that hbpack knows, which are {known}"
        )
    return start, ""


def field_of(message: dict[str, Any], number: int) -> str:
    """The reasoning that the message has as a field, without white space around it."""
    value = next((message[name] for name in REASONING_FIELDS if message.get(name) is not None), None)
    if value is not None and not isinstance(value, str):
        raise TemplateRejectError(f"the reasoning of message {number} is not a string")
    return (value or "").strip()


def with_other_reasoning(messages: list[dict[str, Any]], number: int) -> list[dict[str, Any]]:
    """The messages, with longer reasoning in the fields of one, which is counted from 1."""
    message = messages[number - 1]
    longer = {name: f"{message[name]} And more." for name in REASONING_FIELDS if isinstance(message.get(name), str)}
    return [*messages[: number - 1], {**message, **longer}, *messages[number:]]


def content_of(message: dict[str, Any]) -> str:
    """The content without reasoning in it, and without white space around it."""
    content = _joined(message.get("content"))
    for tags in TAGS:
        if not tags.ends_turns:
            content = content.rpartition(tags.closing)[2]
    return content.strip()


def _texts(message: dict[str, Any]) -> list[str]:
    """The content and the other texts of a message."""
    return [_joined(message.get("content")), *(value for value in message.values() if isinstance(value, str))]


def _joined(content: Any) -> str:
    if isinstance(content, list):
        return "".join(part["text"] for part in content if isinstance(part, dict) and "text" in part)
    return content if isinstance(content, str) else ""


def after_space(text: str, start: int, stop: int) -> int:
    """The first place from `start` on that is not white space; `stop` if there is none."""
    while start < stop and text[start].isspace():
        start += 1
    return start


def before_space(text: str, start: int, stop: int) -> int:
    """The end of the text before `stop` without white space; `start` if there is none."""
    while stop > start and text[stop - 1].isspace():
        stop -= 1
    return stop
