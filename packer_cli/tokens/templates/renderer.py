"""`ChatRenderer`: one chat template, and the best way to its ranges that holds."""

from __future__ import annotations

from typing import Any, Literal

from packer_cli.tokens.templates.compiled import CompiledTemplate
from packer_cli.tokens.templates.conversation import PROBES
from packer_cli.tokens.templates.disproof import ranges_disproof, text_disproof
from packer_cli.tokens.templates.marks import MarkedTemplate
from packer_cli.tokens.templates.prefixes import prefix_rounds
from packer_cli.tokens.templates.turns import turn_edges
from packer_cli.tokens.templates.types import Rendered, TemplateRejectError

Way = Literal["generation", "marks", "prefixes"]


class ChatRenderer:
    """Renders conversations with one chat template.

    Args:
        chat_template: Jinja source.
        variables: what transformers hands to every template (`special_tokens_map`).
        special_tokens: strings that can end a turn.
        want_spans: False leaves out the ranges (`Rendered.spans` is empty).
        fast: the shortcuts of `sandbox`, and `marks`; without them transformers' own sandbox runs.
        way: force one way; by default the best that proves itself on made-up conversations.

    Raises: TokenizerError where the template is not valid Jinja.
    """

    def __init__(
        self,
        chat_template: str,
        *,
        variables: dict[str, str],
        special_tokens: tuple[str, ...] = (),
        want_spans: bool = True,
        fast: bool = True,
        way: Way | None = None,
    ):
        self.chat_template = chat_template
        self.depends_on_date = "strftime_now" in chat_template
        self._want_spans = want_spans
        self._template = CompiledTemplate(chat_template, variables, fast=fast)
        if way is None:
            way = "generation" if self._template.has_generation_tags else "marks" if fast else "prefixes"
        self._marked = MarkedTemplate.of(self._template) if way == "marks" else None
        if way == "marks" and self._marked is None:
            way = "prefixes"
        self.way: Way = way
        prompt = self._template.generation_prompt() if way != "generation" and want_spans else ""
        self._edges = turn_edges(prompt, special_tokens, variables)
        if self.way == "marks" and want_spans and not self._marks_hold_on_probes():
            self.way = "prefixes"

    def render(self, messages: list[dict[str, Any]], tools: list[Any] | None = None) -> Rendered:
        """One conversation.

        Raises: TemplateRejectError (not a list of dicts, empty, a template that raises, or no way to tell
            the assistant's text from the rest).
        """
        return self._render(self._template.context(messages, tools))

    def _render(self, context: dict[str, Any]) -> Rendered:
        if not self._want_spans:
            return Rendered(self._template.text(context), [])
        if self.way == "generation":
            return self._template.text_and_generation(context)
        if self.way == "marks":
            assert self._marked is not None
            text, rounds = self._marked.rounds(context)
        else:
            text, rounds = prefix_rounds(self._template, context)
        return Rendered(text, self._edges.trim(text, rounds))

    def _marks_hold_on_probes(self) -> bool:
        for messages in PROBES:
            try:
                context = self._template.context(messages)
                whole = self._template.text(context)
            except TemplateRejectError:
                continue
            rendered = self._render(context)
            said = [message["content"] for message in messages if message["role"] == "assistant"]
            inside = [rendered.text[start:stop] for start, stop in rendered.spans]
            if rendered.text != whole or len(said) != len(inside):
                return False
            if not all(content in part for content, part in zip(said, inside, strict=True)):
                return False
            if self.disproof(messages) is not None:
                return False
        return True

    def disproof(self, messages: list[dict[str, Any]], tools: list[Any] | None = None) -> str | None:
        """None, or what a comparison of this conversation with slower ways shows to be wrong.

        Proved: the text equals the one without marks; and, for each assistant message i where the text so
        far with a generation prompt is a prefix of the whole text, that its range begins exactly where that
        prefix ends; and where the text of `messages[:i + 1]` is a prefix too, that only whitespace lies
        between the range's end and that prefix's end. Templates that write the last turn in a special way
        (leave the thinking of earlier turns out) have no such prefixes: there nothing is compared.
        """
        context = self._template.context(messages, tools)
        rendered = self._render(context)
        wrong = text_disproof(self._template, context, rendered.text)
        if wrong is not None or not self._want_spans or self.way != "marks":
            return wrong
        return ranges_disproof(self._template, context, rendered, self._edges.closers)
