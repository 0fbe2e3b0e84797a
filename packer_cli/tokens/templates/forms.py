"""Other forms of a conversation, for templates that do not write the form that the record has.

OpenAI's own files have the arguments of calls as JSON text, which most templates quote once more or leave out; some
templates write content in parts only, others only strings; most do not know the role `developer`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

from packer_cli.tokens.templates.conversation import TemplateRejectError
from packer_cli.tokens.templates.shape import parse_object

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
