"""Compares a rendered conversation with slower ways to render it, and finds what a template never writes.

Left out by some templates: tools, system messages, reasoning, tool calls or content in parts. That is found out once
for each template, by made-up conversations; a template that refuses one of them is not judged by it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from packer_cli.tokens.templates.compiled import CompiledTemplate
from packer_cli.tokens.templates.conversation import PROBES, REASONING_FIELDS, Chat, read_chat
from packer_cli.tokens.templates.parts import names_called
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


_QUESTION: dict[str, Any] = {"role": "user", "content": "Ask one."}
_SYSTEM: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    _QUESTION,
    {"role": "assistant", "content": "Say one."},
]
_REASONING: list[dict[str, Any]] = [
    _QUESTION,
    {"role": "assistant", "content": "Say one.", "reasoning_content": "Think hard."},
]
_CALL = {"id": "abcdefghi", "type": "function", "function": {"name": "look_up", "arguments": {"word": "one"}}}
_PARTS: list[dict[str, Any]] = [
    {**message, "content": [{"type": "text", "text": message["content"]}]} for message in PROBES[0]
]
_TOOL_CALLS: list[dict[str, Any]] = [_QUESTION, {"role": "assistant", "content": "", "tool_calls": [_CALL]}]


class Ignored(NamedTuple):
    """Which parts of conversations a template never writes."""

    tools: bool
    system: bool
    reasoning: bool
    tool_calls: bool
    parts: bool
    """Content that is an array of parts is left out, or written as JSON or Python."""

    @classmethod
    def of(cls, template: CompiledTemplate) -> Ignored:
        """Try a template."""
        return cls(
            tools=not template.reads("tools"),
            system=_leaves_out(template, _SYSTEM, "Be brief."),
            reasoning=_leaves_out(template, _REASONING, "Think hard."),
            tool_calls=_leaves_out(template, _TOOL_CALLS, "look_up"),
            parts=_text(template, _PARTS) not in (None, _text(template, PROBES[0])),
        )

    def find(self, chat: Chat) -> list[str]:
        """What of a conversation is not written, for people.

        Raises:
            TemplateRejectError: an answer is nothing but tool calls, which are not written, or a content is in parts,
                which are not.
        """
        messages = chat.messages
        if self.parts and (number := _with_parts(messages)):
            raise TemplateRejectError(
                f"the chat template does not write content that is an array of parts, as message {number} has it; "
                "write it as a string"
            )
        found = []
        if self.tools and chat.tools:
            found.append('"tools"')
        if self.system and any(message.get("role") == "system" for message in messages):
            found.append("a system message")
        if self.reasoning and any(message.get(name) for message in messages for name in REASONING_FIELDS):
            found.append('"reasoning_content"')
        if self.tool_calls:
            calls = [number for number, message in enumerate(messages, 1) if names_called(message)]
            empty = next((number for number in calls if not messages[number - 1].get("content")), None)
            if empty is not None:
                raise TemplateRejectError(
                    f"the chat template does not write tool calls, so message {empty} would be an empty answer"
                )
            found += ['"tool_calls"'] if calls else []
        return [f"{what}, which the chat template does not write" for what in found]


def _with_parts(messages: list[dict[str, Any]]) -> int:
    """The first message, counted from 1, whose content is in parts; 0: none."""
    return next((number for number, each in enumerate(messages, 1) if isinstance(each.get("content"), list)), 0)


def _leaves_out(template: CompiledTemplate, messages: list[dict[str, Any]], text: str) -> bool:
    found = _text(template, messages)
    return found is not None and text not in found


def _text(template: CompiledTemplate, messages: list[dict[str, Any]]) -> str | None:
    try:
        return template.text(template.context(read_chat(messages)))
    except TemplateRejectError:
        return None
