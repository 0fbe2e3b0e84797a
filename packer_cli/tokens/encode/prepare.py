"""One document -> a text with the ranges to train on, or a finished sample."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from packer_cli.errors import TokenizerError
from packer_cli.tokens.encode.backends import BackendMismatch
from packer_cli.tokens.encode.rows import Row, Text
from packer_cli.tokens.encode.specials import END, START, PlainContentEncoder, TokenFinder, control_tokens, mark
from packer_cli.tokens.templates import ChatRenderer, read_chat

if TYPE_CHECKING:
    from packer_cli.corpus.types import Document
    from packer_cli.tokens.encode.backends import ReferenceBackend
    from packer_cli.tokens.templates.conversation import Chat
    from packer_cli.tokens.tokenizer.loading import LoadedTokenizer


SPREAD_CHARS = 1 << 14
"""About how many chars of a part to compare after its first records: of conversations, and again of texts."""
SPREAD_EVERY = 256
"""About one in so many of these records is compared, chosen by `hash_line`."""


class Preparer:
    """Turns documents into `Text` or `Row`.

    Args:
        fast_templates: False renders as transformers does, and proves each conversation's ranges.
        check_chats: conversations at the beginning of each part to compare with slower ways; some of the later ones
            have their text and ranges compared, too.
        warnings: receives the warnings.
    """

    def __init__(
        self,
        tokenizer: LoadedTokenizer,
        reference: ReferenceBackend,
        *,
        all_tokens: bool,
        plain_content: bool,
        fast_templates: bool,
        check_chats: int,
        warnings: list[str],
    ):
        self._tokenizer = tokenizer
        self._all_tokens = all_tokens
        self._fast_templates = fast_templates
        self._check_chats = check_chats
        self._warnings = warnings
        self._finder = TokenFinder(tokenizer.special_tokens)
        self._renderers: dict[str, ChatRenderer] = {}
        self._controls: dict[str, TokenFinder] = {}
        self._plain = PlainContentEncoder(tokenizer, reference) if plain_content else None
        self.start_part()

    def start_part(self) -> None:
        """Compare the first conversations again."""
        self._chats_checked = self._chars_checked = 0
        self._is_warned = False

    def prepare(self, document: Document) -> tuple[Text | Row, bool]:
        """The document as `Text` or `Row`, and whether its own text contains that of a special token.

        Raises:
            ValueError: the document is rejected; the message gives the reason, unless it is a UnicodeEncodeError.
            TokenizerError, BackendMismatch: as for `Encoder.encode`.
        """
        kind = document.kind
        if kind == "messages" or document.messages:
            return self._prepare_chat(document)
        if kind == "text":
            text, spans = document.text, None
        else:
            text = document.prompt + document.completion
            spans = None if self._all_tokens else [(len(document.prompt), len(text))]
        _check_utf8(text)
        special = self._finder.finds(text)
        if self._plain is not None and (special or START in text or END in text):
            return self._plain_text(document.line, text, spans), special
        return Text(document.line, text, spans, is_chat=False), special

    def _prepare_chat(self, document: Document) -> tuple[Text | Row, bool]:
        tools = document.tools
        renderer = self._renderer(with_tools=tools is not None)
        chat = read_chat(document.messages, tools)
        special = self._finder.finds(chat.text)
        if self._plain is not None:
            controls = self._control_finder(renderer.chat_template)
            if controls.finds(chat.text):
                return self._plain_chat(document, renderer, controls), special
        rendered = renderer.render_chat(chat)
        _check_utf8(rendered.text)
        if self._fast_templates:
            self._check(document.line, renderer, chat, len(rendered.text))
        spans = None if self._all_tokens else rendered.spans
        return Text(document.line, rendered.text, spans, is_chat=True, may_close=_ends_with_answer(document)), special

    def _check(self, line: int, renderer: ChatRenderer, chat: Chat, num_chars: int) -> None:
        """Compare the part's first conversations, and some of the others, with slower ways.

        Raises: BackendMismatch.
        """
        if self._chats_checked < self._check_chats:
            self._chats_checked += 1
            wrong = renderer.mismatch(chat)
        elif hash_line(line) % SPREAD_EVERY == 0 and self._chars_checked < SPREAD_CHARS:
            self._chars_checked += num_chars
            wrong = renderer.text_mismatch(chat)
        else:
            return
        if wrong is not None:
            raise BackendMismatch(f"{wrong}; this part is rendered by transformers", line=line, what="template")

    def _renderer(self, *, with_tools: bool) -> ChatRenderer:
        tokenizer = self._tokenizer
        template = (tokenizer.tool_template if with_tools else None) or tokenizer.chat_template
        if template is None:
            raise TokenizerError(
                "the data holds conversations, but the tokenizer has no chat template; "
                "give one with --chat-template FILE"
            )
        renderer = self._renderers.get(template)
        if renderer is None:
            renderer = ChatRenderer(
                template,
                variables=tokenizer.special_tokens_map,
                special_tokens=tokenizer.special_tokens,
                want_spans=not self._all_tokens,
                engine="minijinja" if self._fast_templates else "transformers",
            )
            self._renderers[template] = renderer
        if renderer.depends_on_date and not self._is_warned:
            self._is_warned = True
            self._warnings.append(
                "the chat template writes today's date (strftime_now), so the tokens change from day to day; "
                "put a fixed date into a copy of the template, and give it with --chat-template FILE"
            )
        return renderer

    def _control_finder(self, template: str) -> TokenFinder:
        finder = self._controls.get(template)
        if finder is None:
            finder = TokenFinder((*control_tokens(self._tokenizer, template), START, END))
            self._controls[template] = finder
        return finder

    def _plain_chat(self, document: Document, renderer: ChatRenderer, controls: TokenFinder) -> Row:
        assert self._plain is not None
        tokens = TokenFinder(control_tokens(self._tokenizer, renderer.chat_template)).pattern
        rendered = renderer.render(mark(document.messages, tokens), mark(document.tools, tokens))
        _check_utf8(rendered.text)
        ids, loss_mask = self._plain.encode(rendered.text, rendered.spans, whole_last_char=False)
        if self._all_tokens:
            loss_mask[:] = 1
        return Row(document.line, ids, loss_mask, is_plain=False, may_close=_ends_with_answer(document))

    def _plain_text(self, line: int, text: str, spans: list[tuple[int, int]] | None) -> Row:
        assert self._plain is not None
        cut = spans[0][0] if spans else 0
        before, after = (part.replace(START, "").replace(END, "") for part in (text[:cut], text[cut:]))
        bare, cut = before + after, len(before)
        start = cut
        for found in self._finder.pattern.finditer(bare):
            if found.end() <= cut:
                start += 2
            elif found.start() < cut:
                start += 1
        marked = mark(bare, self._finder.pattern)
        ids, loss_mask = self._plain.encode(marked, [(start, len(marked))], whole_last_char=True)
        return Row(line, ids, loss_mask, is_plain=True, may_close=True)


def hash_line(line: Any) -> Any:
    """Pseudo-random numbers from line numbers: an int, or int64 of any shape."""
    return line * 2654435761 >> 8


def _ends_with_answer(document: Document) -> bool:
    """Whether the model speaks last; only then does EOS belong at the end."""
    return document.messages[-1].get("role") == "assistant"


def _check_utf8(text: str) -> None:
    """Raise UnicodeEncodeError for a lone surrogate."""
    if not text.isascii():
        text.encode()
