"""The shape of a conversation: all that decides how a template writes it, but its words.

Conversations of one shape are written alike, so a made-up one whose every text is a word of its own (`Rehearsal`)
shows where a template writes which text. What templates look for in a content is in the shape of its turn: whether it
is blank, and the tags of `TAGS` in it.

Price: 4 us to read a chat of eight messages with a role and a content each; 3 us a message with calls.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from packer_cli.tokens.templates.conversation import REASONING_FIELDS, Chat, TemplateRejectError, read_chat
from packer_cli.tokens.templates.parts import TAGS, calls_in, function_of

_MOST_PIECES = 12
TAG = re.compile(
    "("
    + "|".join(
        re.escape(tag)
        for tags in TAGS
        for tag in ((tags.opening,) if tags.ends_turns else (tags.opening, tags.closing))
    )
    + "|</?tool_response>|/no_think|/think)"
)
"""Texts that templates look for in contents."""
_CLOSING = {tags.closing for tags in TAGS}
_HINTS = ("think>", "THINK]", "tool_response>", "<|channel|>", "/no_think", "/think")
"""Every text with a tag has one of these."""
_REPEATED = re.compile(r"(.{1,6}?)\1{3,}", re.DOTALL)
"""Turns that repeat more than three times: a first, a middle and a last round show all."""


class Turn(NamedTuple):
    """A message without its words."""

    role: str
    content: tuple[str, ...] | None = None
    """Tags, and True or empty for text or white space between them; None: there is no string."""
    parts: int = 0
    """Number of its content's parts, at most 2."""
    reasoning: tuple[tuple[str, bool], ...] = ()
    """The fields of reasoning, and whether they hold any."""
    calls: tuple[str, ...] = ()
    """The kind of the arguments of each call, at most 2 alike."""
    keys: tuple[str, ...] = ()
    """Keys of a call, the message's own first."""
    others: tuple[tuple[str, str], ...] = ()
    """Other keys, and the types of their values."""


SPEAKERS = ("user", "assistant", "system", "developer")
"""Roles whose `name` is not that of a function."""

Shape = tuple[str | Turn, ...]
"""The kind of the tools, and a turn for each message; that of some text without tags is its role."""


def read_shaped(messages: list[dict[str, Any]], tools: list[Any] | None = None) -> Chat:
    """Read a record's conversation, with its shape; raises as `read_chat`."""
    text = ""
    try:
        if tools is None and sum(map(len, messages)) == 2 * len(messages):
            roles, contents = [message["role"] for message in messages], [message["content"] for message in messages]
            text = "\0".join((*roles, *contents))
    except (TypeError, KeyError):
        pass
    if text and all(map(str.strip, contents)) and not _has_hint(text):
        return Chat(messages, None, text, ("", *roles), contents)
    chat = Chat(messages, None, text) if text else read_chat(messages, tools)
    kind = "" if not chat.tools else "function" if all("function" in tool for tool in chat.tools) else "flat"
    return chat._replace(shape=(kind, *map(_turn_of, chat.messages)))


def _has_hint(text: str) -> bool:
    return ("/" in text or ">" in text or "]" in text) and any(hint in text for hint in _HINTS)


def _turn_of(message: dict[str, Any]) -> str | Turn:
    content = message.get("content")
    role = str(message.get("role", ""))
    if len(message) == 2 and type(content) is str and content.strip() and not _has_hint(content):
        return role
    calls, keys = _calls_of(message)
    own = ("role", "content", "tool_calls", "function_call", *REASONING_FIELDS)
    return Turn(
        role,
        _pieces(content) if isinstance(content, str) else None,
        min(len(content), 2) if isinstance(content, list) else 0,
        tuple((name, bool(str(message[name]).strip())) for name in REASONING_FIELDS if name in message),
        calls,
        keys,
        tuple(
            sorted(
                (key, type(value).__name__)
                for key, value in message.items()
                if key not in own or (key == "content" and not isinstance(value, (str, list)))
            )
        ),
    )


def _pieces(content: str) -> tuple[str, ...]:
    pieces = TAG.split(content)[:_MOST_PIECES]
    return tuple(piece if i % 2 else "text" if piece.strip() else "" for i, piece in enumerate(pieces))


def _calls_of(message: dict[str, Any]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    calls = calls_in(message)
    if not calls:
        return (), ()
    kinds = [_kind_of_arguments(function_of(call).get("arguments")) for call in calls]
    found = sorted(set(kinds))
    first = calls[0] if isinstance(calls[0], dict) else {}
    keys = ["tool_calls" if message.get("tool_calls") else "function_call"]
    keys += sorted(f"{key}:{type(value).__name__}" for key, value in first.items())
    return tuple(found if len(found) > 1 else kinds[:2]), tuple(keys)


def _kind_of_arguments(given: Any) -> str:
    value, form = (parse_object(given), "text") if isinstance(given, str) else (given, "object")
    if not isinstance(value, dict):
        words = "words" if isinstance(given, str) and given.strip() else "other"
        return "none" if given is None else "list" if isinstance(given, list) else words
    if not value:
        return f"{form} empty"
    return form if all(type(each) is str for each in value.values()) else f"{form} typed"


def parse_object(text: str, **hooks: Callable[[Any], Any]) -> dict[str, Any] | None:
    """Parse the object that a text holds as JSON; None if it holds none. The hooks are those of `json.loads`."""
    try:
        value = json.loads(text, **hooks)  # type: ignore[arg-type]
    except TemplateRejectError:
        raise
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def short_shape(shape: Shape) -> tuple[str, tuple[Turn, ...]]:
    """Return the kind of the tools and the turns of a shape, without further repetitions."""
    tools, *turns = shape
    letters: dict[str | Turn, str] = {}
    text = "".join(letters.setdefault(turn, chr(len(letters) + 32)) for turn in turns)
    before = ""
    while before != text:
        before, text = text, _REPEATED.sub(r"\1\1\1", text)
    found = {letter: as_turn(turn) for turn, letter in letters.items()}
    return str(tools), tuple(found[letter] for letter in text)


@lru_cache(maxsize=4096)
def as_turn(turn: str | Turn) -> Turn:
    """Return the turn that a role stands for."""
    return turn if isinstance(turn, Turn) else Turn(turn, ("text",))


class Rehearsal:
    """A made-up conversation with these turns, in which each text is a word of its own.

    Equal turns at its beginning have equal words, so that of fewer turns is its beginning.
    """

    def __init__(self, tools: str, turns: Sequence[Turn]):
        self._number = 0
        self._called: list[str] = []
        self.words: list[dict[str, str]] = []
        """For each message, word -> `content`, `reasoning`, `calls` or `arguments`."""
        self.messages = [self._message(turn) for turn in turns]
        self.tools, self.tool = _TOOLS.get(tools), _TOOL
        """With the word that names a tool."""

    def _word(self, kind: str) -> str:
        self._number += 1
        word = f"qzx{self._number:04}vj"
        self.words[-1][word] = kind
        return word

    def _message(self, turn: Turn) -> dict[str, Any]:
        self.words.append({})
        self._called = [] if turn.role in SPEAKERS else self._called
        message: dict[str, Any] = {"role": turn.role}
        if turn.content is not None:
            message["content"] = "\n".join(
                piece if piece != "text" else self._word(kind_of_piece(turn, i))
                for i, piece in enumerate(turn.content)
            )
        elif turn.parts:
            message["content"] = [{"type": "text", "text": self._word("content")} for _ in range(turn.parts)]
        thought = ""
        for name, has_any in turn.reasoning:
            thought = thought or (self._word("reasoning") if has_any else "")
            message[name] = thought
        for name, kind in turn.others:
            message[name] = self._other(name, kind)
        if turn.calls:
            calls = [self._call(kind, turn.keys) for kind in turn.calls]
            message[turn.keys[0]] = calls if turn.keys[0] == "tool_calls" else calls[0]
        return message

    def _other(self, name: str, kind: str) -> Any:
        if kind == "str" and name in ("tool_call_id", "name") and self._called:
            return self._called.pop(0) if name == "tool_call_id" else self._called[0]
        values = {"str": f"qzkey{name}vj", "bool": True, "int": 1, "float": 1.5, "list": []}
        return values.get(kind, {})

    def _call(self, kind: str, keys: Sequence[str]) -> dict[str, Any]:
        name = self._word("calls")
        self._called.append(name)
        arguments = self._arguments(kind)
        function = {"name": name, **({} if kind == "none" else {"arguments": arguments})}
        call: dict[str, Any] = {}
        for key in keys[1:]:
            key, _, of = key.partition(":")
            if key == "function":
                call[key] = function
            elif key not in ("name", "arguments"):
                call[key] = name if key == "id" else "function" if key == "type" else self._other("", of)
        return call if "function" in call else call | function

    def _arguments(self, kind: str) -> Any:
        form, _, of = kind.partition(" ")
        if form in ("words", "list"):
            word = self._word("arguments")
            return word if form == "words" else [word]
        value: dict[str, Any] = {}
        if of != "empty":
            value[self._word("arguments")] = self._word("arguments")
        if of == "typed":
            number = 710_000_000 + self._number
            self.words[-1][str(number)] = "arguments"
            value |= {self._word("arguments"): number, self._word("arguments"): [self._word("arguments")]}
            value[self._word("arguments")] = {self._word("arguments"): True}
        return json.dumps(value) if form == "text" else value


def kind_of_piece(turn: Turn, i: int) -> str:
    """Whether a piece of the content is `content` or, before a tag that closes it, `reasoning`."""
    assert turn.content is not None
    is_thought = turn.role == "assistant" and turn.content[i + 1 : i + 2] and turn.content[i + 1] in _CLOSING
    return "reasoning" if is_thought else "content"


_TOOL = "qzt0001vj"
_FUNCTION = {
    "name": _TOOL,
    "description": "qzt0002vj",
    "parameters": {
        "type": "object",
        "properties": {"qzt0003vj": {"type": "string", "description": "qzt0004vj"}},
        "required": ["qzt0003vj"],
    },
}
_TOOLS: dict[str, list[dict[str, Any]]] = {
    "function": [{"type": "function", "function": _FUNCTION}],
    "flat": [_FUNCTION],
}


Messages = list[dict[str, Any]]


def convert(messages: Messages, forms: tuple[str, ...]) -> Messages:
    """Convert the messages to these forms of `FORMS`, in their order; what is not concerned is handed on.

    Raises:
        TemplateRejectError: a message has two readings in such a form.
    """
    for form in forms:
        messages = [FORMS[form](message) for message in messages]
    return messages


def _with_arguments(message: dict[str, Any], change: Callable[[Any], Any]) -> dict[str, Any]:
    """Change the arguments in the message's calls."""

    def changed(call: Any) -> Any:
        if not isinstance(call, dict):
            return call
        if isinstance(call.get("function"), dict):
            return {**call, "function": changed(call["function"])}
        return {**call, "arguments": change(call["arguments"])} if "arguments" in call else call

    calls = message.get("tool_calls")
    if isinstance(calls, list) and calls:
        return {**message, "tool_calls": list(map(changed, calls))}
    return {**message, "function_call": changed(message["function_call"])} if message.get("function_call") else message


def _as_dict(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(found := dict(pairs)) < len(pairs):
        keys = json.dumps([key for key, _ in pairs], ensure_ascii=False)
        raise TemplateRejectError(f"an object in the arguments of a call has a key twice, of {keys[:200]}")
    return found


def _as_float(text: str) -> float:
    if not math.isfinite(value := float(text)):
        raise TemplateRejectError(f"the arguments of a call hold {text[:40]}, which is no number of JSON")
    return value


def _as_object(given: Any) -> Any:
    if not isinstance(given, str) or parse_object(given) is None:
        return given
    return parse_object(given, object_pairs_hook=_as_dict, parse_float=_as_float, parse_constant=_as_float)


def _as_text(given: Any) -> Any:
    return json.dumps(given, ensure_ascii=False) if isinstance(given, dict) else given


def _as_system(message: dict[str, Any]) -> dict[str, Any]:
    return {**message, "role": "system"} if message.get("role") == "developer" else message


def _as_parts(message: dict[str, Any]) -> dict[str, Any]:
    content = message.get("content")
    return {**message, "content": [{"type": "text", "text": content}]} if isinstance(content, str) else message


def _as_string(message: dict[str, Any]) -> dict[str, Any]:
    content = message.get("content")
    if not isinstance(content, list) or not all(isinstance(part, dict) and "text" in part for part in content):
        return message
    if len(content) > 1:
        raise TemplateRejectError(
            f"the chat template writes content as a string only, and a message of role {message.get('role')} has "
            f"{len(content)} parts, which may follow each other with a newline between them or without; write it as a "
            "string"
        )
    return {**message, "content": "".join(part["text"] for part in content)}


OBJECTS = "arguments as objects"
FORMS: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    OBJECTS: lambda message: _with_arguments(message, _as_object),
    "arguments as text": lambda message: _with_arguments(message, _as_text),
    "developer as system": _as_system,
    "strings as parts": _as_parts,
    "parts as strings": _as_string,
}
"""Name -> a message in this form."""
