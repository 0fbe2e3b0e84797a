"""`ChatRenderer` renders conversations with one chat template, and finds the ranges of the assistant's text.

How that is done is found out once for each shape of conversation (`rehearsal`), so it depends on the record alone. The
text of a plain one is that of a rehearsed one but for the contents, unless the template may look at these (`outline`).
Of others, marks give the ranges, and `review` compares the text with the messages.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import lru_cache, partial
from itertools import permutations
from typing import Any

from packer_cli.errors import TokenizerError
from packer_cli.tokens.templates.conversation import ASKED, Chat, Rendered, Span, TemplateRejectError, read_chat
from packer_cli.tokens.templates.outline import Outline, Outlines
from packer_cli.tokens.templates.parts import LossParts
from packer_cli.tokens.templates.rehearsal import MORE_TURNS, Finder, Reading, Rehearsals, Rounds, Way
from packer_cli.tokens.templates.rounds import TurnEdges, marked, prefix_rounds, split
from packer_cli.tokens.templates.shape import Rehearsal, Shape, as_turn, convert, read_shaped
from packer_cli.tokens.templates.template import MOST_REPEATED, CompiledTemplate, TemplateLimitError, render
from packer_cli.tokens.templates.written import EARLIER_REASONING, check_extras, find_unwritten

CHECKED_MESSAGES = 64
"""Most messages of a conversation to compare, which bounds the price of long ones."""
_MOST_SHAPES = 10_000


class ChatRenderer:
    """Renders conversations with one chat template.

    Args:
        chat_template: Jinja source.
        variables: values that transformers passes to every template (`special_tokens_map`).
        special_tokens: strings that can end a turn.
        ends: strings that end a turn even where the next turn writes them, besides EOS.
        date: that the template writes; None: today's.
        want_spans: False leaves out the ranges (`Rendered.spans` is empty).
        is_exact: render each conversation, as transformers does, and fill no outline.

    Raises:
        TokenizerError: the template is not valid Jinja, or needs too much time or memory.
    """

    def __init__(
        self,
        chat_template: str,
        *,
        variables: dict[str, str],
        special_tokens: tuple[str, ...] = (),
        ends: tuple[str, ...] = (),
        date: str | None = None,
        want_spans: bool = True,
        is_exact: bool = False,
    ):
        self.chat_template = chat_template
        self._template = CompiledTemplate(chat_template, variables, date)
        self._check_limits()
        prompt = self._template.generation_prompt() if want_spans else ""
        self._edges = TurnEdges(prompt, special_tokens, variables, ends)
        self._ways = self._find_ways() if want_spans else {}
        rehearsals = Rehearsals(self._template, self._edges, self._ways)
        self.reading: Callable[[Shape], Reading] = lru_cache(maxsize=_MOST_SHAPES)(rehearsals.read)
        """Reading of conversations by their shape: how they are rendered."""
        self._outlines = None if is_exact else Outlines(self._template)
        self._outline = lru_cache(maxsize=_MOST_SHAPES)(self._find_outline)

    def render(self, messages: list[dict[str, Any]], tools: list[Any] | None = None) -> Rendered:
        """Render one conversation.

        Raises:
            TemplateRejectError: the messages are empty or not a list of dicts; or the template raises, takes too long,
                or gives no way to tell the assistant's text from the rest.
        """
        return self.render_chat(self.read(messages, tools))

    def read(self, messages: list[dict[str, Any]], tools: list[Any] | None = None) -> Chat:
        """Read a record's conversation, in the form that the template writes.

        Raises:
            TemplateRejectError: it is empty, not a list of dicts, or has two readings in that form.
        """
        chat = read_shaped(messages, tools)
        forms = self.reading(chat.shape).forms
        return Chat(*read_chat(convert(chat.messages, forms), chat.tools)[:-2], *chat[-2:]) if forms else chat

    def render_chat(self, chat: Chat) -> Rendered:
        """Render a conversation from `read`, as `render` does."""
        outline = self._outline(chat.shape) if 0 < len(chat.contents) < CHECKED_MESSAGES else None
        return (outline and outline.fill(chat)) or self._render_marked(chat)

    def _find_outline(self, shape: Shape) -> Outline | None:
        if self._outlines is None:
            return None
        chat = self.read(Rehearsal("", [as_turn(turn) for turn in shape[1:]]).messages)
        with suppress(TemplateRejectError):
            rendered = self._render_marked(chat)
            reading, notes = self.reading(chat.shape), self.review(chat, rendered, None)
            # Behind the shorter one of two headers, a content may go on as the longer one does; likewise for tails.
            more = (long[len(short) :] for long, short in permutations(reading.headers, 2) if long.startswith(short))
            ends = (long[: -len(short)] for long, short in permutations(reading.tails, 2) if long.endswith(short))
            return self._outlines.of(chat, rendered, notes, (*reading.headers, *reading.tails, *more, *ends))
        return None

    def _render_marked(self, chat: Chat) -> Rendered:
        reading = self.reading(chat.shape)
        if reading.refusal:
            self._template.text(chat)  # The template's own reason is better.
            raise TemplateRejectError(reading.refusal)
        if not self._ways:
            return Rendered(self._template.text(chat), [])
        text, rounds = self._ways[reading.way](chat)
        if reading.way == "tags":
            return Rendered(text, self._edges.without_gaps(text, rounds))
        return Rendered(text, self._edges.trim(text, rounds, reading.headers, reading.tails))

    def prompt(self, chat: Chat) -> str:
        """Render the text that the model answers: the conversation so far, with a generation prompt.

        Raises:
            TemplateRejectError: the template raises, or takes too long.
        """
        return self._template.text(chat, prompt=True)

    def review(
        self, chat: Chat, rendered: Rendered, parts: LossParts | None, weights: Sequence[float] | None = None
    ) -> Sequence[str]:
        """Find what the template does not write of a conversation, for people, each thing once.

        Args:
            parts: what carries a loss; None: all.
            weights: of each message; None: 1.

        Raises:
            TemplateRejectError: a text is missing without which training would be wrong: of a message that is not the
                assistant's, or of one that carries a loss.
        """
        if rendered.notes is not None:
            return rendered.notes
        reading = self.reading(chat.shape)
        extras = reading.extras if self._ways else None
        said = sum(message.get("role") == "assistant" for message in chat.messages)
        if reading.way != "tags" and len(rendered.spans) > said:
            raise TemplateRejectError(MORE_TURNS)
        trained = (parts or LossParts()).kinds_of(chat.messages, weights)
        found = [*reading.notes, *find_unwritten(chat, rendered, reading.lost, trained)]
        is_learned = LossParts(parts is not None and parts.only_last).kinds_of(chat.messages, weights)
        earlier = (i for i, turn in enumerate(chat.shape[1:-1]) if "reasoning" in reading.lost(turn))
        if EARLIER_REASONING in found and not any(map(is_learned, earlier)):
            found.remove(EARLIER_REASONING)
        if extras is not None:
            check_extras(chat, rendered, extras)
        return found

    def loss_spans(
        self, chat: Chat, rendered: Rendered, parts: LossParts, weights: Sequence[float] | None = None
    ) -> tuple[list[Span], list[float] | None]:
        """Return a rendered conversation's char ranges with a loss, and their weights, see `LossParts.select`."""
        dropped = self.reading(chat.shape).dropped
        return parts.select(
            rendered, chat.messages, self._edges.endings, weights, dropped=lambda number: dropped(chat.shape[number])
        )

    def _check_limits(self) -> None:
        try:
            if len(self._template.text(read_chat(ASKED))) > MOST_REPEATED:
                raise TemplateLimitError(f"the chat template writes over {MOST_REPEATED:,} chars; give another")
        except TemplateLimitError as error:
            raise TokenizerError(f"a question and its answer: {error}") from None
        except TemplateRejectError:
            pass

    def _find_ways(self) -> dict[Way, Finder]:
        """Find the ways to find the assistant's text, the best first."""
        template = self._template
        has_tags, with_marks = template.num_generation_tags > 0, marked(template)

        def by_marks(chat: Chat) -> Rounds:
            if with_marks is None:
                raise TemplateRejectError("one is in a macro or a block, whose text may be changed")
            return split(render(with_marks, template.context(chat)))

        ways: dict[Way, Finder] = {"tags" if has_tags else "loops": by_marks} if has_tags or with_marks else {}
        return ways if has_tags and with_marks is None else {**ways, None: partial(prefix_rounds, template)}

    def mismatch(self, chat: Chat) -> str | None:
        """Compare the first messages with slower ways to render them; returns the difference, or None.

        The text is compared with transformers', and an outline's ranges with those by marks.
        """
        if len(chat.messages) > CHECKED_MESSAGES:
            chat = self.read(chat.messages[:CHECKED_MESSAGES], chat.tools)
        try:
            rendered = self.render_chat(chat)
        except TemplateRejectError:
            return None  # The template need not accept the beginning of a conversation.
        wrong = self.wrong_text(chat, rendered.text)
        if wrong is None and rendered.notes is not None and rendered.spans != self._render_marked(chat).spans:
            wrong = "an outline and marks give different ranges"
        return wrong

    def wrong_text(self, chat: Chat, text: str, *, is_prompt: bool = False) -> str | None:
        """Say how a text (of `prompt`) differs from the one that transformers renders; None if they are equal."""
        try:
            whole = self._template.text_by_transformers(chat, prompt=is_prompt)
        except Exception:
            return "transformers cannot render this conversation"
        return None if text == whole else "the text differs from transformers'"
