"""Trims the text of an assistant message to the part that the model would have generated.

Ranges from shorter renders: message i begins where the text of `messages[:i]` ends. The price is quadratic, so
conversations of more than a few hundred messages are rejected.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from packer_cli.tokens.templates.compiled import CompiledTemplate
from packer_cli.tokens.templates.limits import MAX_PREFIX_MESSAGES, TemplateLimitError
from packer_cli.tokens.templates.reasoning import TAGS
from packer_cli.tokens.templates.types import Span, TemplateRejectError


@dataclass(frozen=True, kw_only=True)
class TurnEdges:
    """How a template begins and ends the assistant's turns."""

    prompt: str
    """The generation prompt, after which the model continues."""
    endings: tuple[str, ...]
    """Strings that can end a turn; EOS first, since it ends most."""
    closers: tuple[str, ...]
    """Strings that end a turn even after its round: EOS, unless it is also BOS."""
    tags: tuple[Span, ...] = ()
    """Where special tokens and tags around reasoning are in the prompt: a header holds all of one, or nothing."""

    def trim(self, text: str, rounds: list[Span]) -> list[Span]:
        """Cut off the headers, and end each range after its end-of-turn token."""
        spans = []
        prompt, endings = self.prompt, self.endings
        for start, stop in rounds:
            if text.startswith(prompt, start, stop):
                begin = start + len(prompt)
            else:
                begin = start + self._header_length(text, start, stop)
            # Current templates end a turn with its token, perhaps followed by a newline.
            end = stop - 1 if text[stop - 1] == "\n" else stop
            if not text.endswith(endings, begin, end) or text[end - 1].isspace():
                end = self._turn_end(text, begin, stop)
            if end > begin:
                spans.append((begin, end))
        return spans

    def _header_length(self, text: str, start: int, stop: int) -> int:
        """Number of chars of `text[start:stop]` that belong to the generation prompt."""
        prompt = self.prompt
        head = text[start : min(stop, start + len(prompt))]
        length = self._shared_length(head, 0)
        if length == 0:
            # Either of two turns may write the whitespace between them.
            skipped, gap = len(prompt) - len(prompt.lstrip()), len(head) - len(head.lstrip())
            head = text[start + gap : min(stop, start + gap + len(prompt) - skipped)]
            shared = self._shared_length(head, skipped)
            length = gap + shared if shared else 0
        return length

    def _shared_length(self, head: str, skipped: int) -> int:
        """Length of the common prefix of a text and the prompt without its first chars."""
        length = skipped
        for left, right in zip(head, self.prompt[skipped:], strict=False):
            if left != right:
                break
            length += 1
        # What begins like `<think>` may be another tag, of the content.
        return next((start for start, stop in self.tags if start < length < stop), length) - skipped

    def _turn_end(self, text: str, begin: int, stop: int) -> int:
        end = stop
        while end > begin and text[end - 1].isspace():
            end -= 1
        # A special token may itself end with whitespace; that is rare, but try both.
        for candidate in (end, stop):
            if text.endswith(self.endings, begin, candidate):
                return candidate
        # Some templates close a turn at the beginning of the next one, or after the loop.
        for ending in self.endings:
            if ending in self.closers and text.startswith(ending, stop):
                return stop + len(ending)
        return stop


def turn_edges(prompt: str, special_tokens: tuple[str, ...], variables: dict[str, str]) -> TurnEdges:
    """The edges of a template with this generation prompt, these special tokens and this `special_tokens_map`."""
    eos = variables.get("eos_token")
    marks = {*special_tokens, *(tag for tags in TAGS for tag in (tags.opening, tags.closing))}
    return TurnEdges(
        prompt=prompt,
        endings=tuple(sorted(special_tokens, key=lambda token: token != eos)),
        closers=(eos,) if eos and eos != variables.get("bos_token") else (),
        tags=tuple(found.span() for mark in sorted(marks) for found in re.finditer(re.escape(mark), prompt)),
    )


def prefix_rounds(template: CompiledTemplate, context: dict[str, Any]) -> tuple[str, list[Span]]:
    """The text, and the char ranges of the assistant's messages, in order.

    Raises:
        TemplateLimitError: too many messages.
        TemplateRejectError: the template raised, or writes a message differently once others follow.
    """
    messages = context["messages"]
    edges = _edges(messages)
    if sum(edges) > MAX_PREFIX_MESSAGES:
        raise TemplateLimitError(
            f"the chat template does not show who said what without rendering the beginning of the conversation again "
            f"for each answer, and {len(messages)} messages are too many for that; mark the answers with "
            "{% generation %} in the template, or split the conversation"
        )
    text = template.text(context)
    ends = {count: _prefix_end(template, text, context, count) for count in edges}
    ends[len(messages)] = len(text)
    rounds = [
        (ends[position], ends[position + 1])
        for position, message in enumerate(messages)
        if message.get("role") == "assistant" and ends[position + 1] > ends[position]
    ]
    return text, rounds


def _edges(messages: list[dict[str, Any]]) -> list[int]:
    """Lengths of the prefixes that end just before or just after an assistant message, except the whole."""
    spoken = [position for position, message in enumerate(messages) if message.get("role") == "assistant"]
    return sorted({*spoken, *(position + 1 for position in spoken)} - {len(messages)})


def _prefix_end(template: CompiledTemplate, text: str, context: dict[str, Any], count: int) -> int:
    """The char at which the first `count` messages end in the text of the whole conversation."""
    try:
        prefix = template.text(context, messages=context["messages"][:count])
    except TemplateRejectError:
        if count == 0:
            prefix = "" if text else "?"
        else:
            raise
    if not text.startswith(prefix):
        # Perhaps only the end differs, as in templates that close the last turn in another way.
        prefix = prefix.rstrip()
        if not prefix or not text.startswith(prefix):
            raise TemplateRejectError(
                "the chat template writes earlier messages differently as the conversation goes on, so the "
                "assistant's text cannot be told from the rest; mark it with {% generation %} in the template"
            )
    return len(prefix)
