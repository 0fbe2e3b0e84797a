"""One document -> a text with the ranges to train on."""

from __future__ import annotations

import re
from collections import Counter
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from packer_cli.corpus.types import Document, Message
from packer_cli.errors import TokenizerError
from packer_cli.format.tokens import SampleOptions
from packer_cli.tokens.encode.backends import BackendMismatch, Comparison
from packer_cli.tokens.encode.masks import Backends
from packer_cli.tokens.encode.rows import Text
from packer_cli.tokens.encode.specials import END, START, PlainContentEncoder, TokenFinder
from packer_cli.tokens.templates.parts import LossParts, weights_or_none

if TYPE_CHECKING:
    from packer_cli.tokens.templates.assistant_ranges import ChatRenderer
    from packer_cli.tokens.templates.conversation import Chat, Rendered, Span

_OTHERS = frozenset(("system", "developer", "user", "tool"))
"""Roles that do not mean the assistant."""


class Preparer:
    """Turns documents into `Text`.

    Args:
        options: as for `Encoder`.
        check_chats: conversations at the beginning of each part to compare with slower ways, besides some later ones.
        is_exact: render as transformers does.
    """

    def __init__(self, backends: Backends, options: SampleOptions, *, check_chats: int, is_exact: bool):
        tokenizer = self._tokenizer = backends.tokenizer
        self.parts = None if options.loss_on == "all" else LossParts.of(options.loss_on)
        """Parts that carry a loss; None: every token."""
        self._ends_have_loss = self.parts is None or self.parts.answer
        self._is_exact = is_exact
        self._check_chats = check_chats
        self._date = options.date
        self.warnings: list[str] = []
        """Warnings about the current part, each once."""
        self.unused: Counter[str] = Counter()
        """Documents of the current part with something that is not written, by what it is."""
        self._finder = TokenFinder(tokenizer.special_tokens)
        self._renderer_of = cache(self._make_renderer)
        self._controls_of = cache(self._find_controls)
        self._plain = PlainContentEncoder(tokenizer, backends.reference) if options.plain_content else None
        self.start_part()

    def start_part(self) -> None:
        """Compare the first conversations again, and clear the warnings and counts."""
        self.warnings.clear()
        self.unused.clear()
        self._chats, self._prompts = Comparison(self._check_chats), Comparison(self._check_chats)

    def prepare(self, document: Document) -> tuple[Text, bool]:
        """Prepare a document as `Text`; say whether its own text contains that of a special token.

        Raises:
            ValueError: the document is rejected; the message gives the reason, unless it is a UnicodeEncodeError.
            TokenizerError, BackendMismatch: as for `Encoder.encode`.
        """
        kind = document.kind
        if kind == "messages" or document.messages:
            return self._prepare_chat(document)
        if document.tools:
            self.unused['"tools", which have no place in a prompt that is a string'] += 1
        if kind == "text" and not self._ends_have_loss:
            raise ValueError("a plain text has no assistant turns, and --loss-on trains only on parts of these")
        prompt, completion = ("", document.text) if kind == "text" else (document.prompt, document.completion)
        if self._plain is not None:
            prompt, completion = (part.replace(START, "").replace(END, "") for part in (prompt, completion))
        text = prompt + completion
        spans = None if kind == "text" or self.parts is None else self.parts.of_completion(text, len(prompt))
        loss = _Loss(spans, None, document.weight if self._ends_have_loss else 0.0).times(document.weight)
        _check_utf8(text)
        special = self._finder.finds(text)
        item = Text(document.line, text, loss.spans, False, True, loss.weights, loss.end)
        return (self._as_plain(item, self._plain) if self._plain is not None and special else item), special

    def _prepare_chat(self, document: Document) -> tuple[Text, bool]:
        renderer = self._renderer(with_tools=document.tools is not None)
        given, chat = self._read(renderer, document.messages, document.tools)
        self._require_assistant(given)
        special = self._finder.finds(given.text)
        is_marked = chat is not given
        rendered = renderer.render_chat(chat)
        _check_utf8(rendered.text)
        weights = self._weights(document)
        if unused := renderer.review(chat, rendered, self.parts, weights):
            self.unused.update(unused)
        if not self._is_exact and not is_marked and self._chats.takes(document.line, len(rendered.text)):
            _require_same(renderer.mismatch(chat), document.line)
        loss = self._chat_loss(document, renderer, chat, rendered, weights)
        # A template may go on after the answer, with a generation prompt.
        spans, text = rendered.spans, rendered.text
        may_close = _ends_with_answer(document) and not (spans and text[spans[-1][1] :].strip())
        encoded = self._plain.encode(text) if is_marked and self._plain is not None else None
        return Text(document.line, text, loss.spans, True, may_close, loss.weights, loss.end, encoded), special

    def _require_assistant(self, chat: Chat) -> None:
        """Raise ValueError for messages of which none is the assistant's, but one of a role that might mean it."""
        if self.parts is None or "assistant" in chat.shape:  # A plain turn of it; others are looked for below.
            return
        roles = list(dict.fromkeys(str(message.get("role")) for message in chat.messages))
        if "assistant" not in roles and not _OTHERS.issuperset(roles):
            raise ValueError(f"no message of role assistant carries a loss: its roles are {' and '.join(roles)}")

    def _read(self, renderer: ChatRenderer, messages: list[Message], tools: list[Any] | None) -> tuple[Chat, Chat]:
        """Read a conversation as it is, and with special tokens wrapped that are to be plain text."""
        chat = renderer.read(messages, tools)
        controls = None if self._plain is None else self._controls_of(renderer.chat_template)
        if controls is None or not controls.finds(chat.text):
            return chat, chat
        from transformers.utils.chat_template_utils import mark_control_tokens

        return chat, renderer.read(*(mark_control_tokens(each, controls.pattern) for each in (messages, tools)))

    def prompt(self, document: Document) -> str | NDArray[np.int32]:
        """Return the text of a document's prompt before an answer, or its ids with special tokens as plain text.

        The prompt of a conversation is its first `num_prompt` messages, with the prompt to generate an answer.

        Raises: as `prepare`.
        """
        if not document.messages:
            prompt = document.prompt
            if self._plain is not None:
                prompt = prompt.replace(START, "").replace(END, "")
                if self._finder.finds(prompt):
                    return self._plain.encode(_wrapped(prompt, self._finder.pattern))[0]
            return prompt
        renderer = self._renderer(with_tools=document.tools is not None)
        given, chat = self._read(renderer, document.messages[: document.num_prompt], document.tools)
        text = renderer.prompt(chat)
        _check_utf8(text)
        if chat is not given and self._plain is not None:
            return self._plain.encode(text)[0]
        if not self._is_exact and self._prompts.takes(document.line, len(text)):
            _require_same(renderer.wrong_text(chat, text, is_prompt=True), document.line)
        return text

    def _weights(self, document: Document) -> tuple[float, ...] | None:
        """Return the weight of each message; None: all are 1."""
        weights = document.weights
        if weights is not None and all(weight == 1 for weight in weights):
            weights = None
        prompt = document.num_prompt
        if self.parts is None:
            if weights is not None:
                raise ValueError(
                    'messages have "weight", but --loss-on all trains on what is between them, too; give the record '
                    "a weight, or choose another --loss-on"
                )
        elif prompt and any(message.get("role") == "assistant" for message in document.messages[:prompt]):
            weights = (0.0,) * prompt + (weights or (1.0,) * len(document.messages))[prompt:]
        return weights

    def _chat_loss(
        self,
        document: Document,
        renderer: ChatRenderer,
        chat: Chat,
        rendered: Rendered,
        weights: tuple[float, ...] | None,
    ) -> _Loss:
        """Return the loss of a conversation, as it was rendered."""
        if self.parts is None:
            return _Loss(None, None, document.weight).times(document.weight)
        spans, of_spans = renderer.loss_spans(chat, rendered, self.parts, weights)
        end = document.weight if self._ends_have_loss else 0.0
        if weights is not None and _ends_with_answer(document):
            end *= weights[-1]
        return _Loss(spans, of_spans, end).times(document.weight)

    def _renderer(self, *, with_tools: bool) -> ChatRenderer:
        tokenizer = self._tokenizer
        template = (tokenizer.tool_template if with_tools else None) or tokenizer.chat_template
        if template is None:
            raise TokenizerError(
                "the data holds conversations, but the tokenizer has no chat template; "
                "give one with --chat-template, a Jinja file or a name such as chatml"
            )
        return self._renderer_of(template)

    def _make_renderer(self, template: str) -> ChatRenderer:
        from packer_cli.tokens.templates.assistant_ranges import ChatRenderer  # Loads jinja2, which texts do without.

        return ChatRenderer(
            template,
            variables=self._tokenizer.special_tokens_map,
            special_tokens=self._tokenizer.special_tokens,
            ends=self._tokenizer.stops,
            want_spans=self.parts is not None,
            date=self._date,
            is_exact=self._is_exact,
        )

    def _find_controls(self, template: str) -> TokenFinder:
        return TokenFinder((*self._tokenizer.hf._get_control_tokens(template), START, END))

    def _as_plain(self, item: Text, plain: PlainContentEncoder) -> Text:
        """Wrap the tokens in a text, and encode them as plain text."""
        inside = [found.span() for found in self._finder.pattern.finditer(item.text)]
        spans = item.spans and [(_marked_place(a, inside), _marked_place(b, inside)) for a, b in item.spans]
        marked = _wrapped(item.text, self._finder.pattern)
        return item._replace(text=marked, spans=spans, encoded=plain.encode(marked))


def _wrapped(text: str, tokens: re.Pattern[str]) -> str:
    from transformers.utils.chat_template_utils import mark_control_tokens

    return str(mark_control_tokens(text, tokens))


class _Loss(NamedTuple):
    """Loss of a text: its spans and weights."""

    spans: list[Span] | None
    """Char ranges; None: the whole text."""
    weights: list[float] | None
    """Weight of each span; None: 1."""
    end: float
    """Weight of what follows the text, and without spans of all of it."""

    def times(self, weight: float) -> _Loss:
        """Multiply the loss by a record's weight; `end` is multiplied already."""
        if weight == 0:
            return _Loss([], None, 0.0)
        if weight == 1 or self.spans is None:
            return self
        of_spans = self.weights or [1.0] * len(self.spans)
        return self._replace(weights=weights_or_none([weight * each for each in of_spans]))


def _require_same(wrong: str | None, line: int) -> None:
    if wrong is not None:
        raise BackendMismatch(f"{wrong}; this part is rendered by transformers", line=line, what="template")


def _marked_place(place: int, tokens: list[Span]) -> int:
    """Return where a place of a text is after these tokens of the text were wrapped in two chars each."""
    return place + sum((start < place) + (stop <= place) for start, stop in tokens)


def _ends_with_answer(document: Document) -> bool:
    """Whether the model speaks last; only then does EOS belong at the end."""
    return document.messages[-1].get("role") == "assistant"


def _check_utf8(text: str) -> None:
    """Raise UnicodeEncodeError for a lone surrogate."""
    if not text.isascii():
        text.encode()
