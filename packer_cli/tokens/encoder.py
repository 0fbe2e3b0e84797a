"""Documents -> samples: ids and loss mask. One `Encoder` for each worker.

A part (one slice of the input) is encoded batch by batch::

    encoder.start_part()
    try:
        for batch in read(slice): write(encoder.encode(batch))
    except BackendMismatch as mismatch:
        encoder_of_part = encoder.fallback(mismatch)   # and the part again from its beginning

What a document becomes depends on the document, the options and, for a part with a mismatch, the part;
never on how documents are put in batches or on the number of workers.

Price: 70 us for a chat of eight messages, most of it the template; long texts 75-400 MB/s (gigatoken).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from packer_cli.corpus.types import Reject
from packer_cli.errors import TokenizerError
from packer_cli.tokens.backends import (
    BackendMismatch,
    CharRanges,
    GigatokenBackend,
    Ids,
    ReferenceBackend,
)
from packer_cli.tokens.encoder_masks import Masker
from packer_cli.tokens.encoder_prepare import Preparer
from packer_cli.tokens.encoder_rows import Frame, Row, Text
from packer_cli.tokens.types import EncodedBatch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from packer_cli.corpus.types import DocumentBatch
    from packer_cli.tokens.tokenizer import LoadedTokenizer

_CHECKED_CHARS = 1024
"""So much of a sampled text is compared: the reference is many times slower, and part by part that adds up."""
_FIRST_CHARS = 1 << 13
"""About how many chars of a part's first texts are compared."""
_SPREAD_CHARS = 1 << 15
"""About how many chars of a part are compared besides its first texts."""
_SPREAD_EVERY = 128

_SURROGATE = "holds a lone surrogate, which cannot be encoded as UTF-8"


class Encoder:
    """Encodes batches of documents with one tokenizer.

    Args:
        tokenizer: from `load_tokenizer`.
        backend: `auto` takes gigatoken where it can do the tokenizer; `gigatoken` insists on it.
        loss_on: `completion` trains on what the assistant says (messages) and on completions
            (prompt-completion); `all` on every token. Texts are trained on as a whole either way.
        append_eos: put EOS after each sample that does not end with it.
        plain_content: special tokens that people wrote into their texts are encoded as ordinary text.
        check_samples: how many texts at the beginning of each part are compared with the reference;
            more cost 0.5 ms a chat and guard better; about one in 128 of the later ones is compared, too.

    Raises: TokenizerError.
    """

    def __init__(
        self,
        tokenizer: LoadedTokenizer,
        *,
        backend: Literal["auto", "gigatoken", "tokenizers"] = "auto",
        loss_on: Literal["completion", "all"] = "completion",
        append_eos: bool = False,
        plain_content: bool = False,
        check_samples: int = 16,
        _slow_templates: bool = False,
    ):
        if append_eos and tokenizer.eos_token_id is None:
            raise TokenizerError(
                "--append-eos needs an EOS token, and the tokenizer names none; "
                'put "eos_token" into its tokenizer_config.json'
            )
        self._tokenizer = tokenizer
        self._options: dict[str, Any] = {
            "loss_on": loss_on,
            "append_eos": append_eos,
            "plain_content": plain_content,
            "check_samples": check_samples,
        }
        self._check_samples = check_samples
        self.warnings: list[str] = []
        """Sentences for people about the part in work, each once."""
        self._why_slow: str | None = None
        self._reference = ReferenceBackend(tokenizer)
        self._backend: ReferenceBackend | GigatokenBackend = self._reference
        if backend != "tokenizers":
            try:
                self._backend = GigatokenBackend(tokenizer, self._reference)
            except TokenizerError:
                if backend == "gigatoken":
                    raise
        self.backend_used: str = self._backend.name
        """`gigatoken` or `tokenizers`."""
        self._masker = Masker(tokenizer, self._reference, self._same)
        self._frame = Frame(tokenizer, append_eos=append_eos)
        self._preparer = Preparer(
            tokenizer,
            self._reference,
            self._frame,
            all_tokens=loss_on == "all",
            plain_content=plain_content,
            fast_templates=not _slow_templates,
            check_chats=check_samples,
            warnings=self.warnings,
        )
        self.start_part()

    def start_part(self) -> None:
        """A new part begins: its first texts will be compared with the reference again, and warnings are its own."""
        self.warnings[:] = [] if self._why_slow is None else [self._why_slow]
        self._texts_checked = self._first_checked = self._spread_checked = 0
        self._preparer.start_part()

    def fallback(self, mismatch: BackendMismatch) -> Encoder:
        """The encoder for all of the part in which `encode` raised; what differed is done by the reference."""
        slow = mismatch.what == "template"
        other = Encoder(self._tokenizer, backend="tokenizers", **self._options, _slow_templates=slow)
        other._why_slow = str(mismatch)
        other.start_part()
        return other

    def encode(self, batch: DocumentBatch) -> EncodedBatch:
        """The samples of a batch, in the order of its documents.

        `rejects` of the result are the documents refused here, not those that the batch came with.

        Raises: TokenizerError (conversations, and no chat template), BackendMismatch (see the module).
        """
        items: list[Text | Row] = []
        rejects: list[Reject] = []
        num_with_special = 0
        for document in batch.documents:
            try:
                item, with_special = self._preparer.prepare(document)
            except UnicodeEncodeError:
                rejects.append(Reject(document.line, _SURROGATE))
            except ValueError as error:
                rejects.append(Reject(document.line, str(error)))
            else:
                num_with_special += with_special
                items.append(item)
        return self._finish(items, rejects, num_with_special)

    def _finish(self, items: list[Text | Row], rejects: list[Reject], num_with_special: int) -> EncodedBatch:
        texts = [item for item in items if isinstance(item, Text)]
        ids, ranges = self._encode_texts(texts)
        self._check_ids(texts, ids)
        loss_mask = self._masker.mask(texts, ids, ranges)
        offsets = ids.offsets
        framed = self._frame.append_eos or not (self._frame.is_empty or all(item.is_chat for item in texts))
        if len(texts) == len(items) and not framed and bool(np.all(np.diff(offsets))):
            lines = np.array([item.line for item in items], dtype=np.int64)
            return _batch(offsets, ids.input_ids, loss_mask, lines, rejects, num_with_special)
        rows: list[Row] = []
        number = 0
        for item in items:
            row = item
            if isinstance(item, Text):
                at = slice(offsets[number], offsets[number + 1])
                number += 1
                count = int(offsets[number] - offsets[number - 1])
                mask = np.ones(count, dtype=np.int8) if loss_mask is None else loss_mask[at]
                row = Row(item.line, ids.input_ids[at], mask)
                if not item.is_chat:
                    row = self._frame.around(row, trained=item.spans is None)
                row = self._frame.close(row)
            assert isinstance(row, Row)
            if len(row.input_ids):
                rows.append(row)
            else:
                rejects.append(Reject(row.line, "is empty: it gives no token"))
        rejects.sort(key=lambda reject: reject.line)
        lengths = np.array([len(row.input_ids) for row in rows], dtype=np.int64)
        return _batch(
            np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)]),
            np.concatenate([row.input_ids for row in rows]) if rows else np.zeros(0, np.int32),
            np.concatenate([row.loss_mask for row in rows]) if rows else np.zeros(0, np.int8),
            np.array([row.line for row in rows], dtype=np.int64),
            rejects,
            num_with_special,
        )

    def _encode_texts(self, texts: list[Text]) -> tuple[Ids, list[CharRanges] | None]:
        plain = [item.text for item in texts]
        if self._backend is self._reference and self._masker.wants_ranges and any(item.spans for item in texts):
            return self._reference.encode_with_ranges(plain)
        return self._backend.encode(plain), None

    def _check_ids(self, texts: list[Text], ids: Ids) -> None:
        """Compare sampled texts with the reference."""
        if self._backend is self._reference:
            return
        samples: list[tuple[Text, str, Any]] = []
        for number in self._sampled(texts):
            item = texts[number]
            text = item.text
            if len(text) <= _CHECKED_CHARS:
                samples.append((item, text, ids.row(number)))
            else:
                start = _scatter(item.line) % (len(text) - _CHECKED_CHARS)
                samples.append((item, text[start : start + _CHECKED_CHARS], None))
        if not samples:
            return
        expected = self._reference.encode([text for _, text, _ in samples])
        again = self._backend.encode([text for _, text, row in samples if row is None])
        redone = iter(range(len(samples)))
        for number, (item, _, row) in enumerate(samples):
            self._same(item, again.row(next(redone)) if row is None else row, expected.row(number))

    def _sampled(self, texts: list[Text]) -> Iterator[int]:
        """Which texts to compare: the first ones of a part, and some of the others, by their lines."""
        first = 0
        while first < len(texts) and self._texts_checked < self._check_samples and self._first_checked < _FIRST_CHARS:
            self._texts_checked += 1
            self._first_checked += min(len(texts[first].text), _CHECKED_CHARS)
            yield first
            first += 1
        lines = np.array([item.line for item in texts[first:]], dtype=np.int64)
        for number in np.flatnonzero(_scatter(lines) % _SPREAD_EVERY == 0).tolist():
            size = min(len(texts[first + number].text), _CHECKED_CHARS)
            if self._spread_checked + size <= _SPREAD_CHARS:
                self._spread_checked += size
                yield first + number

    def _same(self, item: Text, got: NDArray[np.int32], expected: NDArray[np.int32]) -> None:
        if not np.array_equal(got, expected):
            raise BackendMismatch(
                f"line {item.line}: {self.backend_used} and tokenizers give different ids; "
                "this part is encoded by tokenizers",
                line=item.line,
            )


def _scatter(line: Any) -> Any:
    """Line numbers as numbers that look random."""
    return line * 2654435761 >> 8


def _batch(
    offsets: NDArray[np.int64],
    input_ids: NDArray[np.int32],
    loss_mask: NDArray[np.int8] | None,
    lines: NDArray[np.int64],
    rejects: list[Reject],
    num_with_special: int,
) -> EncodedBatch:
    return EncodedBatch(
        offsets=offsets,
        input_ids=input_ids,
        loss_mask=loss_mask,
        lines=lines,
        rejects=rejects,
        num_with_special=num_with_special,
    )
