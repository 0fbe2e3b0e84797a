"""Conversations as transformers hands them to a template, and made-up ones to try a template on."""

from __future__ import annotations

from typing import Any

from packer_cli.tokens.templates.types import TemplateRejectError

_REASONING_FIELDS = ("reasoning_content", "thinking", "reasoning")

PROBES: list[list[dict[str, Any]]] = [
    [{"role": "user", "content": "Ask one."}, {"role": "assistant", "content": "Say one."}],
    [
        {"role": "user", "content": "Ask one."},
        {"role": "assistant", "content": "Say one."},
        {"role": "user", "content": "Ask two."},
        {"role": "assistant", "content": "Say two."},
    ],
    [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Ask one."},
        {"role": "assistant", "content": "Say one."},
    ],
]
"""The first is the shortest, a question and its answer."""


def template_context(
    messages: list[dict[str, Any]], tools: list[Any] | None, variables: dict[str, str]
) -> dict[str, Any]:
    """The template's variables for a conversation, normalized as transformers does.

    variables: what transformers hands to every template (`special_tokens_map`).

    Raises: TemplateRejectError (not a list of dicts, empty, a tool that is not a dict).
    """
    if type(messages) is not list or not messages:
        raise TemplateRejectError("the conversation is empty; a chat needs at least one message")
    chat = messages
    for position, message in enumerate(messages):
        normal = _normal_message(message)
        if normal is not message:
            if chat is messages:
                chat = messages.copy()
            chat[position] = normal
    if tools is not None:
        tools = _plain(tools)
        if not all(isinstance(tool, dict) for tool in tools):
            raise TemplateRejectError("a tool is not an object; tools are JSON schemas")
    return {
        "messages": chat,
        "tools": tools,
        "documents": None,
        "add_generation_prompt": False,
        **variables,
    }


def _normal_message(message: Any) -> dict[str, Any]:
    """As transformers sees it: no None values, plain JSON types, the reasoning under all its names."""
    if type(message) is not dict:
        raise TemplateRejectError(f"a message is not an object but {type(message).__name__}")
    for value in message.values():
        if type(value) is not str:
            message = {key: _plain(item) for key, item in message.items() if item is not None}
            break
    if not message.keys().isdisjoint(_REASONING_FIELDS):
        reasoning = next(message[key] for key in _REASONING_FIELDS if message.get(key) is not None)
        message = {"thinking": reasoning, **message, "reasoning_content": reasoning}
    return message


def _plain(value: Any) -> Any:
    from transformers.utils.chat_template_utils import _plain_template_data

    return _plain_template_data(value)
