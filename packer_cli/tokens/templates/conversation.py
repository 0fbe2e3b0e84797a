"""Conversations as transformers passes them to a template, and what it makes of them; a made-up one to try it on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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


REASONING_FIELDS = ("reasoning_content", "thinking", "reasoning")
_MOST_NESTED = 100

ASKED: list[dict[str, Any]] = [
    {"role": "user", "content": "Ask one."},
    {"role": "assistant", "content": "Say one."},
]
"""The shortest conversation: a question and its answer."""


class Chat(NamedTuple):
    """A conversation, normalized as transformers does it."""

    messages: list[dict[str, Any]]
    tools: list[Any] | None
    text: str
    """All its strings except the keys, separated by NUL."""
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
    return Chat(messages, tools, "\0".join(_strings([*messages, *(tools or ())])))


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


def _strings(value: Any) -> Iterator[str]:
    """Yield a JSON value's strings, without keys."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, (list, dict)):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _strings(item)


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
