"""Finds the char ranges of the assistant's turns in the text that a template writes.

Extra output nodes in the template's syntax tree mark where each round of a loop over the messages begins, and where
the loop ends, so that the text between two marks is exactly the output of one round: one render gives the text and the
place of each message in it. In the same way, the tags `{% generation %}` and `{% endgeneration %}` become marks.

A mark begins with a text that each process chooses at random, so no content and no template can forge one. Only what
goes straight to the text is marked: a template may cut, strip or count what a macro, a call, a filter, a block or a
recursive loop writes.

Without marks, message i begins where the text of `messages[:i]` ends. The price is quadratic, so conversations of more
than a few hundred messages are rejected.
"""

from __future__ import annotations

import re
import secrets
from functools import reduce
from typing import Any

from jinja2 import nodes
from jinja2.visitor import NodeTransformer

from packer_cli.tokens.templates.conversation import Chat, Span, TemplateRejectError
from packer_cli.tokens.templates.parts import TAGS, before_space
from packer_cli.tokens.templates.template import CompiledTemplate, TemplateLimitError, is_generation

MARK = "".join(chr(int(digit, 16) + (1 if digit < "8" else 6)) for digit in secrets.token_hex(8))
"""Begins each mark. No template replaces control characters, so all processes read a template alike; none of these is
white space, and all are ASCII, as most texts: others would double the size of those."""
MAX_PREFIX_MESSAGES = 100_000
"""Most messages to render, over all renders of one conversation, without marks."""
_LEAST_HEADER = 3
"""Chars: less may be chance."""
_MOST_TAG = 40
_TAG = re.compile(rf"<[^<>]{{1,{_MOST_TAG}}}>|\[[^][]{{1,{_MOST_TAG}}}\]")
"""A tag, which a header holds whole or not at all."""
_DEPTHS = 2
"""Levels of nested loops to mark (`for turn in turns: for message in turn`).

A mark is that text, a letter and the level: A where a part of the assistant begins; O where another's begins, or the
loop ends."""


def marked(template: CompiledTemplate) -> Any | None:
    """Compile a template with marks at its generation tags or, without these, at its loops; None if there is nothing
    to mark, or if a tag is where it cannot be marked."""
    tree = template.environment.parse(template.source)
    marker = _Marker(template)
    marker.visit(tree, 0)
    is_whole = marker.found == template.num_generation_tags if marker.is_tagged else marker.found
    return template.compile(tree) if is_whole else None


class _Marker(NodeTransformer):
    """Puts marks into a syntax tree, in place. What is visited is inside so many loops that are marked."""

    def __init__(self, template: CompiledTemplate):
        self.is_tagged = template.num_generation_tags > 0
        self.found = 0
        """Loops, or tags, that were marked."""

    def visit_For(self, node: Any, depth: int) -> Any:  # noqa: N802 - jinja's names, here and below
        if node.recursive:
            return node
        names = [
            each.name for each in (node.target, *node.target.find_all(nodes.Name)) if isinstance(each, nodes.Name)
        ]
        # Needless marks do no harm.
        if self.is_tagged or depth == _DEPTHS or not names or node.find(nodes.Output) is None:
            return self.generic_visit(node, depth)
        self.found += 1
        self.generic_visit(node, depth + 1)
        node.body.insert(0, self._round_mark(names, depth, node.lineno))
        return [node, self._output("O", depth, node.lineno)]

    def visit_CallBlock(self, node: Any, depth: int) -> Any:  # noqa: N802
        if not is_generation(node):
            return node
        self.found += 1
        begin, end = (self._output(letter, 0, node.lineno) for letter in "AO")
        return [begin, nodes.Scope(node.body, lineno=node.lineno), end]

    def _captured(self, node: Any, _: int) -> Any:
        """Leave out what a template may look at, rather than write."""
        return node

    visit_Macro = visit_AssignBlock = visit_FilterBlock = visit_Block = _captured  # noqa: N815

    def _output(self, letter: str, depth: int, lineno: int) -> Any:
        return nodes.Output([nodes.TemplateData(f"{MARK}{letter}{depth}")], lineno=lineno)

    def _round_mark(self, names: list[str], depth: int, lineno: int) -> Any:
        is_assistant = [nodes.Operand("eq", nodes.Const("assistant"))]
        roles = [nodes.Getattr(nodes.Name(name, "load"), "role", "load") for name in names]
        tests: list[Any] = [nodes.Compare(role, is_assistant) for role in roles]
        test = reduce(nodes.Or, tests)
        yes, no = (self._output(letter, depth, lineno) for letter in "AO")
        return nodes.If(test, [yes], [], [no], lineno=lineno)


def split(text: str) -> tuple[str, list[Span]]:
    """Split the text from the marks; return it, and the char ranges of the assistant's rounds, in order.

    A round inside another assistant round (a loop over its parts) is part of the outer one.
    """
    first, *pieces = text.split(MARK)
    texts, spans = [first], []
    position = len(first)
    start, level = -1, ""  # Of the round of the assistant that has begun, if any.
    for piece in pieces:
        letter, depth = piece[:1], piece[1:2]
        if start >= 0 and depth <= level:
            if position > start:
                spans.append((start, position))
            start = -1
        if letter == "A" and start < 0:
            start, level = position, depth
        texts.append(piece[2:])
        position += len(piece) - 2
    return "".join(texts), spans


class TurnEdges:
    """Edges of the assistant's turns: their beginnings and ends in a template."""

    def __init__(self, prompt: str, special_tokens: tuple[str, ...], variables: dict[str, str], ends: tuple[str, ...]):
        """Take a template's generation prompt, special tokens and `special_tokens_map`.

        Args:
            ends: tokens at which a model stops, besides EOS.
        """
        eos = variables.get("eos_token")
        self.prompt = prompt
        """The generation prompt, after which the model continues."""
        self.endings = tuple(sorted(special_tokens, key=lambda token: token != eos))
        """Strings that can end a turn; EOS first, since it ends most."""
        self.closers = (*((eos,) if eos and eos != variables.get("bos_token") else ()), *ends)
        """Strings that end a turn even after its round: EOS, unless it is also BOS, and others at which a model
        stops."""

    def trim(
        self, text: str, rounds: list[Span], headers: tuple[str, ...] = (), tails: tuple[str, ...] = ()
    ) -> list[Span]:
        """Cut off the headers, and end each range after its end-of-turn token, or before white space.

        Args:
            headers: that may begin a round, the longest first; one may be empty. Without any, the generation prompt.
            tails: that may follow the end of a turn in its round, the longest first.

        Raises:
            TemplateRejectError: a round begins with none of the headers.
        """
        spans = []
        endings = self.endings
        for start, stop in rounds:
            for header in headers or (self.prompt, ""):
                if text.startswith(header, start, stop):
                    begin = start + len(header)
                    break
            else:
                raise TemplateRejectError(
                    "the chat template begins a turn of the assistant unlike those of other conversations, not with "
                    f"{' or '.join(map(repr, headers))}"
                )
            for tail in tails:
                if text.endswith(tail, begin, stop):
                    stop -= len(tail)
                    break
            # Current templates end a turn with its token, perhaps followed by a newline.
            end = stop - 1 if text[stop - 1] == "\n" else stop
            if not text.endswith(endings, begin, end) or text[end - 1].isspace():
                end = self._turn_end(text, begin, stop)
            if end > begin:
                spans.append((begin, end))
        return spans

    def without_gaps(self, text: str, spans: list[Span]) -> list[Span]:
        """Cut off white space of ranges that a token may share with the text behind, which is another's."""
        for number, (start, stop) in enumerate(spans):
            is_shared = stop < len(text) and text[stop - 1].isspace() and not text[stop].isspace()
            if is_shared and not text.startswith(self.endings or ("\0",), stop):
                spans[number] = start, before_space(text, start, stop)
        return spans

    def _shared(self, text: str, prompt: str, start: int) -> int:
        """Find the place where a text leaves a conversation with a generation prompt, with no tag cut.

        White space may differ if there is no other text after `start`.
        """
        length = common_length(text, prompt)
        if not text[start:length].strip():
            at = [place for place, char in enumerate(text) if not char.isspace()]
            same = common_length("".join(text.split()), "".join(prompt.split()))
            length = at[same - 1] + 1 if same else 0
        marks = (*self.endings, *(tag for tags in TAGS for tag in (tags.opening, tags.closing)))
        starts = [text.find(mark, max(length - len(mark) + 1, 0), length + len(mark) - 1) for mark in marks]
        around = _TAG.finditer(text, max(length - _MOST_TAG, 0), length + _MOST_TAG)
        starts += [tag.start() for tag in around if tag.end() > length]
        return min((place for place in starts if 0 <= place < length), default=length)

    def header(self, text: str, start: int, stop: int, asked: str) -> str | None:
        """Find the generation prompt, and what is before it, in a text that leads to the assistant's; None if none.

        Args:
            asked: the conversation so far, with a generation prompt, which the text does not begin with.
        """
        lead = text[start:stop]
        ends = (lead[:size] for size in range(min(len(lead), len(asked)), 0, -1) if asked.endswith(lead[:size]))
        end = next(ends, "")
        if end.strip():
            return end
        past = self._shared(text, asked, start)
        if start < past <= stop:
            return text[start:past]
        for prompt in self.prompts():
            at = lead.rfind(prompt) if prompt.strip() else -1
            if at >= 0:
                return lead[: at + len(prompt)]
        sizes = range(len(self.prompt), _LEAST_HEADER, -1)
        if any(lead.endswith(self.prompt[:size]) and self.prompt[:size].strip() for size in sizes):
            return lead
        for tags in TAGS:
            lead = lead.replace(tags.opening, "").replace(tags.closing, "")
        return None if lead.strip() else ""

    def prompts(self) -> list[str]:
        """Return the generation prompt, without tags of reasoning, and without white space at their ends."""
        cuts = [at for tags in TAGS if (at := self.prompt.find(tags.opening)) > 0]
        found = [self.prompt, *(self.prompt[:at] for at in cuts)]
        return [*found, *(prompt.rstrip() for prompt in found)]

    def _turn_end(self, text: str, begin: int, stop: int) -> int:
        end = before_space(text, begin, stop)
        # A special token may itself end with whitespace; that is rare, but try both.
        for candidate in (end, stop):
            if text.endswith(self.endings, begin, candidate):
                return candidate
        # Some templates close a turn at the beginning of the next one, or after the loop.
        for ending in self.closers:
            if text.startswith(ending, stop):
                return stop + len(ending)
        return end


def common_length(one: str, other: str) -> int:
    """Return the length of the common beginning of two texts."""
    differ = (place for place, (a, b) in enumerate(zip(one, other, strict=False)) if a != b)
    return next(differ, min(len(one), len(other)))


def prefix_rounds(template: CompiledTemplate, chat: Chat) -> tuple[str, list[Span]]:
    """Return the text, and the char ranges of the assistant's messages, in order.

    Raises:
        TemplateLimitError: too many messages.
        TemplateRejectError: the template raised, or writes a message differently once others follow.
    """
    messages = chat.messages
    edges = _edges(messages)
    if sum(edges) > MAX_PREFIX_MESSAGES:
        raise TemplateLimitError(
            f"the chat template does not show who said what without rendering the beginning of the conversation again "
            f"for each answer, and {len(messages)} messages are too many for that; mark the answers with "
            "{% generation %} in the template, or split the conversation"
        )
    text = template.text(chat)
    ends = {count: _prefix_end(template, text, chat, count) for count in edges}
    ends[len(messages)] = len(text)
    rounds = [
        (ends[position], ends[position + 1])
        for position, message in enumerate(messages)
        if message.get("role") == "assistant" and ends[position + 1] > ends[position]
    ]
    return text, rounds


def _edges(messages: list[dict[str, Any]]) -> list[int]:
    """Return the lengths of prefixes that end just before or just after an assistant message, except the whole."""
    spoken = [position for position, message in enumerate(messages) if message.get("role") == "assistant"]
    return sorted({*spoken, *(position + 1 for position in spoken)} - {len(messages)})


def _prefix_end(template: CompiledTemplate, text: str, chat: Chat, count: int) -> int:
    """Find the char at which the first `count` messages end in the text of the whole conversation."""
    try:
        prefix = template.text(chat._replace(messages=chat.messages[:count]))
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
