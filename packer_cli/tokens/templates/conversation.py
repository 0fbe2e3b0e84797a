"""Conversations as transformers passes them to a template, and what it makes of them; made-up ones to try it on."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple, cast

Span = tuple[int, int]


class Rendered(NamedTuple):
    """One conversation as text."""

    text: str
    spans: list[Span]
    """Char ranges of `text` that the assistant generated, in order and disjoint; empty if not requested."""
    notes: Sequence[str] | None = None
    """Things that the template does not write, for people; None: nobody has looked for them."""


class TemplateRejectError(ValueError):
    """The template cannot render this conversation; the message gives the reason."""


def cannot_render(error: Exception) -> TemplateRejectError:
    """Make the rejection for an error that a template raised."""
    if isinstance(error, TemplateRejectError):
        return error
    return TemplateRejectError(f"the chat template cannot render this conversation: {one_line(error)}")


def one_line(error: Exception) -> str:
    """Write the error's message on one line of at most 300 chars, or its type's name if it has none."""
    text = re.sub(r"\s+", " ", str(error)).strip() or type(error).__name__
    return text if len(text) <= 300 else text[:297] + "..."


REASONING_FIELDS = ("reasoning_content", "thinking", "reasoning")
_MOST_NESTED = 100
_UNSAFE = ("\x1c", "\x1d", "\x1e", "\x1f")
"""Whitespace in Python but not in Rust."""

_ASKED: list[dict[str, Any]] = [
    {"role": "user", "content": "Ask one."},
    {"role": "assistant", "content": "Say one."},
]
PROBES: list[list[dict[str, Any]]] = [
    _ASKED,
    [*_ASKED, {"role": "user", "content": "Ask two."}, {"role": "assistant", "content": "Say two."}],
    [{"role": "system", "content": "Be brief."}, *_ASKED],
]
"""The first is the shortest, a question and its answer; the last has a system message."""


class Chat(NamedTuple):
    """A conversation, normalized as transformers does it."""

    messages: list[dict[str, Any]]
    tools: list[Any] | None
    text: str
    """All its strings except the keys, separated by NUL."""
    is_safe: bool
    """Whether minijinja and jinja2 treat every value alike."""
    shape: tuple[Any, ...] = ()
    """All that decides how a template writes it, but its words, see `shape`."""
    contents: Sequence[str] = ()
    """Texts of the messages if each is a role and some text without tags, and there are no tools; else empty."""


def read_chat(messages: list[dict[str, Any]], tools: list[Any] | None = None) -> Chat:
    """Read a record's conversation, without its shape.

    Raises:
        TemplateRejectError: it is empty or not a list of dicts, or a tool is not a dict.
    """
    if type(messages) is not list or not messages:
        raise TemplateRejectError("the conversation is empty; a chat needs at least one message")
    _check_depth([*messages, *(tools or ())])
    messages = [_normal_message(message) for message in messages]
    if tools is not None:
        tools = _plain(tools)
        if not all(isinstance(tool, dict) for tool in tools):
            raise TemplateRejectError("a tool is not an object; tools are JSON schemas")
    texts: list[str] = []
    keys: set[str] = set()
    are_alike = all([_collect(value, texts, keys) for value in (*messages, *(tools or ()))])  # noqa: C419 - all are collected
    text = "\0".join(texts)
    return Chat(messages, tools, text, are_alike and is_safe_text("\0".join((text, *keys))))


def _check_depth(values: list[Any]) -> None:
    """Raise TemplateRejectError for what would exhaust the stack of a template, or of those who read it."""
    for _ in range(_MOST_NESTED):
        values = [
            inner
            for value in values
            if type(value) is dict or type(value) is list
            for inner in (value.values() if type(value) is dict else value)
        ]
        if not values:
            return
    raise TemplateRejectError(f"a message or tool nests more than {_MOST_NESTED} objects and arrays in each other")


def is_safe_text(text: str) -> bool:
    """Whether both engines treat the text alike."""
    for unsafe in _UNSAFE:
        if unsafe in text:
            return False
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            return False
    return True


def _collect(value: Any, texts: list[str], keys: set[str]) -> bool:
    """Collect a JSON value's strings and keys; returns whether both engines write its numbers alike."""
    kind = type(value)
    if kind is str:
        texts.append(value)
        return True
    if kind is dict:
        keys.update(key for key in value if type(key) is str)
        return all([type(key) is str and _collect(item, texts, keys) for key, item in value.items()])  # noqa: C419
    if kind is list:
        return all([_collect(item, texts, keys) for item in value])  # noqa: C419
    if kind is int:
        found: bool = abs(value) < 1 << 63
        return found
    if kind is float:
        return 1e-4 <= abs(value) < 1e15 and not value.is_integer()  # minijinja passes 2.0 to a filter as 2.
    return value is None or kind is bool


def _normal_message(message: Any) -> dict[str, Any]:
    """Return the message as transformers sees it: no None values, plain JSON types, the reasoning under all names."""
    if type(message) is not dict:
        raise TemplateRejectError(f"a message is not an object but {type(message).__name__}")
    for value in message.values():
        if type(value) is not str:
            message = {key: _plain(item) for key, item in message.items() if item is not None}
            break
    if not message.keys().isdisjoint(REASONING_FIELDS):
        reasoning = next(message[key] for key in REASONING_FIELDS if message.get(key) is not None)
        message = {"thinking": reasoning, **message, "reasoning_content": reasoning}
    return cast("dict[str, Any]", message)


def _plain(value: Any) -> Any:
    from transformers.utils.chat_template_utils import _plain_template_data

    return _plain_template_data(value)
