"""`ChatRenderer` renders conversations with one chat template, and finds the ranges of the assistant's text.

Compares a rendered conversation with slower ways to render it, and finds what a template never writes.
Left out by some templates: tools, system messages, reasoning, tool calls or content in parts. That is found out once
for each template, by made-up conversations; a template that refuses one of them is not judged by it.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any, Literal, NamedTuple

from packer_cli.errors import TokenizerError
from packer_cli.tokens.templates.conversation import (
    PROBES,
    REASONING_FIELDS,
    Chat,
    Rendered,
    Span,
    TemplateRejectError,
    read_chat,
)
from packer_cli.tokens.templates.minijinja import MinijinjaTemplate
from packer_cli.tokens.templates.parts import LossParts, names_called
from packer_cli.tokens.templates.rounds import MarkedTemplate, Place, prefix_rounds, turn_edges
from packer_cli.tokens.templates.rules import NotTranslatableError
from packer_cli.tokens.templates.template import CompiledTemplate, TemplateLimitError

Way = Literal["generation", "marks", "prefixes"]
Engine = Literal["minijinja", "jinja2", "transformers"]
CHECKED_MESSAGES = 64
"""Most messages of a conversation to compare, which bounds the price of long ones."""
_CHECKED_ANSWERS = 4
"""About how many of the assistant's messages, spread over these, to compare the ranges of."""


class ChatRenderer:
    """Renders conversations with one chat template.

    Args:
        chat_template: Jinja source.
        variables: values that transformers passes to every template (`special_tokens_map`).
        special_tokens: strings that can end a turn.
        want_spans: False leaves out the ranges (`Rendered.spans` is empty).
        engine: `minijinja`, with jinja2 for what minijinja cannot do; `jinja2`; `transformers`: jinja2, and each
            conversation's ranges proved, or found as transformers does.
        way: force one way; by default the best one that works on made-up conversations.

    Raises:
        TokenizerError: the template is not valid Jinja, or needs too much time or memory.
    """

    def __init__(
        self,
        chat_template: str,
        *,
        variables: dict[str, str],
        special_tokens: tuple[str, ...] = (),
        want_spans: bool = True,
        engine: Engine = "minijinja",
        way: Way | None = None,
    ):
        self.chat_template = chat_template
        self.depends_on_date = "strftime_now" in chat_template
        self._want_spans = want_spans
        self._proves_each = engine == "transformers"
        self._template = CompiledTemplate(chat_template, variables)
        self._check_limits()
        self._marked: MarkedTemplate | None = None
        self._minijinja: MinijinjaTemplate | None = None
        self.way: Way = way or ("generation" if self._template.has_generation_tags else "marks")
        prompt = self._template.generation_prompt() if self.way != "generation" and want_spans else ""
        self._edges = turn_edges(prompt, special_tokens, variables)
        place = self._choose_marks() if want_spans else None
        if engine == "minijinja" and (place is not None or not want_spans):
            with suppress(NotTranslatableError):
                self._minijinja = MinijinjaTemplate(self._template, place)
            if self._minijinja is not None and not self._minijinja_holds_on_probes():
                self._minijinja = None

    def render(self, messages: list[dict[str, Any]], tools: list[Any] | None = None) -> Rendered:
        """Render one conversation.

        Raises:
            TemplateRejectError: the messages are empty or not a list of dicts; or the template raises, takes too long,
                or gives no way to tell the assistant's text from the rest.
        """
        return self.render_chat(read_chat(messages, tools))

    def render_chat(self, chat: Chat) -> Rendered:
        """Like `render`, for a conversation from `read_chat`."""
        if self._minijinja is not None and chat.is_safe:
            found = self._minijinja.rounds(chat)
            if found is not None:
                return self._trimmed(*found)
        return self._render_by_jinja2(chat)

    def prompt(self, chat: Chat) -> str:
        """The text that the model answers: the conversation so far, with a generation prompt.

        Raises:
            TemplateRejectError: the template raises, or takes too long.
        """
        if self._minijinja is not None and chat.is_safe:
            found = self._minijinja.rounds(chat, add_generation_prompt=True)
            if found is not None:
                return found[0]
        return self._template.text(self._template.context(chat), add_generation_prompt=True)

    def wrong_prompt(self, chat: Chat, text: str) -> str | None:
        """The difference of a text of `prompt` from the text that transformers renders; None if they are equal."""
        return self._wrong_text(self._template.context(chat), text, add_generation_prompt=True)

    def ignored(self, chat: Chat) -> list[str]:
        """What the template does not write of a conversation, for people.

        Raises:
            TemplateRejectError: without it, an answer is empty.
        """
        if chat.is_plain and chat.messages[0]["role"] != "system":
            return []
        return self._ignored.find(chat)

    @cached_property
    def _ignored(self) -> Ignored:
        return Ignored.of(self._template)

    def loss_spans(
        self, chat: Chat, rendered: Rendered, parts: LossParts, weights: Sequence[float] | None = None
    ) -> tuple[list[Span], list[float] | None]:
        """The char ranges of a rendered conversation that carry a loss, and their weights, see `LossParts.select`."""

        def gives_same(messages: list[dict[str, Any]]) -> bool:
            try:
                return self.render_chat(chat._replace(messages=messages)).text == rendered.text
            except TemplateRejectError:
                return False

        return parts.select(rendered, chat.messages, self._edges.endings, weights, gives_same=gives_same)

    def _render_by_jinja2(self, chat: Chat) -> Rendered:
        context = self._template.context(chat)
        if not self._want_spans:
            return Rendered(self._template.text(context), [])
        if self._marked is not None:
            found = self._marked.rounds(chat)
            if found is not None:
                rendered = self._trimmed(*found)
                if not self._proves_each or self._wrong_ranges(context, rendered) is None:
                    return rendered
        if self.way == "generation":
            return self._template.text_and_generation(context)
        return self._trimmed(*prefix_rounds(self._template, context))

    def _trimmed(self, text: str, rounds: list[Span]) -> Rendered:
        return Rendered(text, rounds if self.way == "generation" else self._edges.trim(text, rounds))

    def _check_limits(self) -> None:
        try:
            self._template.text(self._template.context(read_chat(PROBES[0])))
        except TemplateLimitError as error:
            raise TokenizerError(f"a question and its answer: {error}") from None
        except TemplateRejectError:
            pass

    def _choose_marks(self) -> Place | None:
        """Find marks that work on made-up conversations; if none do, the way becomes `prefixes`."""
        if self.way == "prefixes" or (self.way == "generation" and self._proves_each):
            return None
        places: tuple[Place, ...] = ("generation",) if self.way == "generation" else ("stream", "anywhere")
        for place in places:
            self._marked = MarkedTemplate(self._template, place)
            if self._marked.has_marks and (self.way == "generation" or self._marks_hold_on_probes()):
                return place
        self._marked = None
        if self.way == "marks":
            self.way = "prefixes"
        return None

    def _marks_hold_on_probes(self) -> bool:
        assert self._marked is not None
        for messages in PROBES:
            try:
                chat = read_chat(messages)
                context = self._template.context(chat)
                whole = self._template.text(context)
                found = self._marked.rounds(chat)
            except TemplateRejectError:
                continue
            if found is None:
                return False
            rendered = self._trimmed(*found)
            said = [message["content"] for message in messages if message["role"] == "assistant"]
            inside = [rendered.text[start:stop] for start, stop in rendered.spans]
            if rendered.text != whole or len(said) != len(inside):
                return False
            if not all(content in part for content, part in zip(said, inside, strict=True)):
                return False
            if self._wrong_text(context, whole) or self._wrong_ranges(context, rendered):
                return False
        return True

    def _minijinja_holds_on_probes(self) -> bool:
        assert self._minijinja is not None
        for messages in PROBES:
            chat = read_chat(messages)
            try:
                expected = self._render_by_jinja2(chat)
            except TemplateRejectError:
                continue
            found = self._minijinja.rounds(chat)
            if found is None or self._trimmed(*found) != expected:
                return False
        return True

    def mismatch(self, chat: Chat, *, with_prefixes: bool = True) -> str | None:
        """Compare this conversation with slower ways to render it; returns the difference, or None.

        For the first messages, checks that text and ranges equal jinja2's, and the text transformers'. For some of the
        assistant's messages i, also checks the range against two prefixes of the text: it must begin where the text
        before the message, with a generation prompt, ends; and only whitespace may lie between its end and the end of
        the text of `messages[:i + 1]`. A template that writes the last turn in a special way (say, leaves out the
        thinking of earlier turns) has no such prefixes, so this check is skipped.

        Args:
            with_prefixes: whether to check ranges against these shorter renders.
        """
        if len(chat.messages) > CHECKED_MESSAGES:
            chat = chat._replace(messages=chat.messages[:CHECKED_MESSAGES])
        context = self._template.context(chat)
        try:
            rendered = self.render_chat(chat)
        except TemplateRejectError:
            return None  # The template need not accept the beginning of a conversation.
        wrong = self._wrong_text(context, rendered.text)
        if wrong is None and self._minijinja is not None:
            try:
                expected = self._render_by_jinja2(chat)
            except TemplateRejectError:
                return "minijinja renders this conversation, but jinja2 cannot"
            if rendered != expected:
                wrong = "jinja2 and minijinja give different ranges"
        if wrong is None and with_prefixes and self._want_spans and self.way == "marks":
            return self._wrong_ranges(context, rendered)
        return wrong

    def _wrong_text(self, context: dict[str, Any], text: str, *, add_generation_prompt: bool = False) -> str | None:
        """The difference from the text that transformers renders; None if they are equal."""
        try:
            whole = self._template.text_by_transformers(context, add_generation_prompt=add_generation_prompt)
        except Exception:
            return "transformers cannot render this conversation"
        return None if text == whole else "the text differs from transformers'"

    def _wrong_ranges(self, context: dict[str, Any], rendered: Rendered) -> str | None:
        """The difference between the ranges and those of shorter renders, see `mismatch`; None if they agree."""
        whole, template, closers = rendered.text, self._template, self._edges.closers
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


_QUESTION, _ANSWER = PROBES[0]
_REASONING = [_QUESTION, {**_ANSWER, "reasoning_content": "Think hard."}]
_CALL = {"id": "abcdefghi", "type": "function", "function": {"name": "look_up", "arguments": {"word": "one"}}}
_PARTS: list[dict[str, Any]] = [
    {**message, "content": [{"type": "text", "text": message["content"]}]} for message in PROBES[0]
]
_TOOL_CALLS = [_QUESTION, {"role": "assistant", "content": "", "tool_calls": [_CALL]}]


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
            system=_leaves_out(template, PROBES[2], "Be brief."),
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
        in_parts = (number for number, each in enumerate(messages, 1) if isinstance(each.get("content"), list))
        if self.parts and (number := next(in_parts, None)):
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


def _leaves_out(template: CompiledTemplate, messages: list[dict[str, Any]], text: str) -> bool:
    found = _text(template, messages)
    return found is not None and text not in found


def _text(template: CompiledTemplate, messages: list[dict[str, Any]]) -> str | None:
    try:
        return template.text(template.context(read_chat(messages)))
    except TemplateRejectError:
        return None
