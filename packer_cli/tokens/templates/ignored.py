"""What a template never writes: tools, system messages, reasoning or tool calls.

Found out once for each template, by made-up conversations; a template that refuses one of them is not judged by it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from packer_cli.tokens.templates.compiled import CompiledTemplate
from packer_cli.tokens.templates.conversation import REASONING_FIELDS, Chat, read_chat
from packer_cli.tokens.templates.tool_calls import names_called
from packer_cli.tokens.templates.types import TemplateRejectError

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
_TOOL_CALLS: list[dict[str, Any]] = [_QUESTION, {"role": "assistant", "content": "", "tool_calls": [_CALL]}]


class Ignored(NamedTuple):
    """Which parts of conversations a template never writes."""

    tools: bool
    system: bool
    reasoning: bool
    tool_calls: bool

    @classmethod
    def of(cls, template: CompiledTemplate) -> Ignored:
        """Try a template."""
        return cls(
            tools=not template.reads("tools"),
            system=_leaves_out(template, _SYSTEM, "Be brief."),
            reasoning=_leaves_out(template, _REASONING, "Think hard."),
            tool_calls=_leaves_out(template, _TOOL_CALLS, "look_up"),
        )

    def find(self, chat: Chat) -> list[str]:
        """What of a conversation is not written, for people.

        Raises:
            TemplateRejectError: an answer is nothing but tool calls, which are not written.
        """
        messages = chat.messages
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


def _leaves_out(template: CompiledTemplate, messages: list[dict[str, Any]], text: str) -> bool:
    try:
        return text not in template.text(template.context(read_chat(messages)))
    except TemplateRejectError:
        return False
