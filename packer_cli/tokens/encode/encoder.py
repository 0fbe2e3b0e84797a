"""Documents -> samples: ids and loss mask. Each worker has its own `Encoder`.

It encodes a part (one slice of the input)::

    encoder.start_part()
    try:
        for batch in encoder.encode_all(read(slice)): write(batch)
    except BackendMismatch as mismatch:
        encoder = encoder.fallback(mismatch, "data.jsonl, line 7")   # then encode the part again from its beginning

The part may then have another mismatch, of the other kind.

The result for a document depends on the document, the options and, for a part with a mismatch, the part;
never on the batches or on the number of workers.

Price: 35 us for a plain chat of eight messages; long texts 75-400 MB/s (gigatoken).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer_cli.corpus.ragged import join_arrays, join_samples, take_samples
from packer_cli.corpus.records.base import without_texts
from packer_cli.corpus.types import Document, DocumentBatch, RecordSchema, Reject, TokenBatch
from packer_cli.errors import TokenizerError
from packer_cli.format.ragged import Lists
from packer_cli.format.tokens import SampleOptions
from packer_cli.tokens.encode.backends import (
    BackendMismatch,
    Comparison,
    GigatokenBackend,
    ReferenceBackend,
    hash_line,
)
from packer_cli.tokens.encode.branches import BranchPreparer, turns_of, why_rejected
from packer_cli.tokens.encode.items import DIFFERS, begin_after_prompts, with_items
from packer_cli.tokens.encode.masks import Backends, mask_texts
from packer_cli.tokens.encode.prepare import Preparer
from packer_cli.tokens.encode.rows import ENDS, EncodedBatch, Frame, Items, Text
from packer_cli.tokens.templates.memory import limited_memory

_CHECKED_CHARS = 1024
"""Most chars of a sampled text to compare: the reference is many times slower, which adds up over parts."""
_FIRST_CHARS = 1 << 13
"""About how many chars of a part's first texts to compare."""

_ENCODED_TOGETHER = 1 << 18
"""About how many chars of texts to encode at once: each call has its price."""
_RECORD_SIZE = 100
"""Chars that a record counts for, besides its own."""


@dataclass
class _Held:
    """Texts, tokens and rejects that are to be encoded together."""

    items: list[Text] = field(default_factory=list)
    tokens: list[TokenBatch] = field(default_factory=list)
    rejects: list[Reject] = field(default_factory=list)
    kinds: dict[int, RecordSchema] = field(default_factory=dict)
    documents: dict[int, Document] = field(default_factory=dict)
    """The ones with branches, by line."""
    prompts: dict[int, Any] = field(default_factory=dict)
    """The text or the ids of each prompt behind which a loss begins, by the first of `items` that it is of."""
    num_with_special: int = 0
    size: int = 0


class Encoder:
    """Encodes batches of documents with one tokenizer.

    Args:
        backends: of the tokenizer.
        options: of these, `tokenizer_backend`, where `auto` uses gigatoken if it supports the tokenizer, and
            `gigatoken` insists on it; `loss_on`, see `LossParts`, where `completion` trains on the assistant's
            messages and on completions (prompt-completion), and `all` on every token, and plain texts are trained on
            as a whole, or rejected if the answers are not trained on; `append_eos`, see `Frame`; `plain_content`,
            which encodes special tokens that people wrote into their texts as ordinary text; `turns`, where `branch`
            makes an item of each conversation, whose samples are its turns, see `turns_of`; and `date`, that
            templates write; None: today's.
        check_samples: texts at the beginning of each part to compare with the reference. More guard better, and cost
            0.5 ms a chat. About one in 256 of the later ones is compared, too.
        is_exact: render conversations as transformers does.

    Raises:
        TokenizerError: gigatoken does not support the tokenizer, or `append_eos` needs an EOS that it lacks.
    """

    def __init__(self, backends: Backends, options: SampleOptions, *, check_samples: int = 16, is_exact: bool = False):
        tokenizer = backends.tokenizer
        if options.append_eos == "always" and tokenizer.eos_token_id is None:
            raise TokenizerError(
                "--append-eos always needs an EOS token, and the tokenizer has none; name a token of its vocabulary "
                "with --eos-token TOKEN"
            )
        self._options = options
        self._check_samples = check_samples
        self._is_exact = is_exact
        self._why_slow: list[str] = []
        self._backends = backends
        self._reference = backends.reference
        self._backend: ReferenceBackend | GigatokenBackend = self._reference
        if options.tokenizer_backend != "tokenizers":
            fast = backends.gigatoken
            if isinstance(fast, GigatokenBackend):
                self._backend = fast
            elif options.tokenizer_backend == "gigatoken":
                raise fast
        self.backend_used: str = self._backend.name
        """`gigatoken` or `tokenizers`."""
        self._frame = Frame(tokenizer, append_eos=options.append_eos)
        self._preparer = Preparer(backends, options, check_chats=check_samples, is_exact=is_exact)
        eos = None if options.append_eos == "never" else tokenizer.special_tokens_map.get("eos_token")
        self._branches = BranchPreparer(self._preparer, eos)
        self.warnings = self._preparer.warnings
        self.unused = self._preparer.unused
        self.start_part()

    def start_part(self) -> None:
        """Start a part: compare its first texts with the reference again, and clear the warnings and counts."""
        self._comparison = Comparison(self._check_samples, _FIRST_CHARS)
        self._preparer.start_part()
        self.warnings += self._why_slow

    def fallback(self, mismatch: BackendMismatch, place: str) -> Encoder:
        """Make the encoder for the whole part in which `encode` raised: the reference replaces the differing fast way.

        Args:
            place: file and line of the document, for the warning.
        """
        is_exact, options = self._is_exact, self._options
        if mismatch.what == "template":
            is_exact = True
        else:
            options = replace(options, tokenizer_backend="tokenizers")
        other = Encoder(self._backends, options, check_samples=self._check_samples, is_exact=is_exact)
        other._why_slow = [*self._why_slow, f"{place}: {mismatch}"]
        other.start_part()
        return other

    def encode(self, batch: DocumentBatch) -> EncodedBatch:
        """Encode the samples of a batch, in the order of lines.

        Raises:
            TokenizerError: there are conversations but no chat template, or samples to be ended but no EOS.
            BackendMismatch: see the module.
        """
        held = _Held()
        self._prepare(batch, held)
        return self._encode(held)

    def encode_all(self, batches: Iterable[DocumentBatch]) -> Iterator[EncodedBatch]:
        """Encode the samples of batches that follow each other, in the order of lines.

        Each document becomes a text as it comes, while it is in the processor's cache; the texts of several batches
        are encoded together.

        Raises: as `encode`.
        """
        held = _Held()
        for batch in batches:
            self._prepare(batch, held)
            if held.size >= _ENCODED_TOGETHER:
                yield self._encode(held)
                held = _Held()
        if held.size:
            yield self._encode(held)

    def _prepare(self, batch: DocumentBatch, held: _Held) -> None:
        held.rejects += batch.rejects
        held.size += _RECORD_SIZE * (len(batch.documents) + len(batch.rejects))
        with limited_memory():
            for document in batch.documents:
                self._prepare_document(document, held)
        if batch.tokens is not None:
            held.tokens.append(batch.tokens)
            for line, values in batch.pairs.items():
                held.documents[line] = Document("preference", line, values=values)
                held.kinds[line] = "preference"
            held.size += batch.tokens.input_ids.nbytes

    def _prepare_document(self, document: Document, held: _Held) -> None:
        if self._options.turns == "branch" and document.messages:
            document = turns_of(document)
        try:
            if document.branches:  # All of their samples are encoded, or none.
                items, prompt, with_special = self._branches.prepare(document)
                if prompt is not None:
                    held.prompts[len(held.items)] = prompt
                held.documents[document.line] = document._replace(messages=[], tools=None, branches=())
            else:
                item, with_special = self._preparer.prepare(document)
                items = [item]
        except ValueError as error:
            held.rejects.append(Reject(document.line, without_texts(why_rejected(error), document)))
            return
        held.num_with_special += with_special
        held.items += items
        held.kinds[document.line] = document.kind
        for item in items:
            held.size += len(item.text)

    def _encode(self, held: _Held) -> EncodedBatch:
        samples, items = self._encode_items(held)
        ends = np.array([(each.is_chat, each.may_close, each.end_weight) for each in items], ENDS)
        if held.tokens:
            given = join_samples(held.tokens)
            order = np.argsort(np.concatenate([samples.lines, given.lines]), kind="stable")
            of_given = np.repeat(np.array((True, False, 1), ENDS), len(given.lines))  # Like chats that stay open.
            if given.weight is not None:
                of_given["end_weight"] = given.weight
            ends = np.concatenate([ends, of_given])[order]
            # Wide types would slow what follows down; narrow ones may not hold an EOS that is added.
            dtype = np.uint16 if self._backends.tokenizer.vocab_size <= 2**16 else np.int32
            given = given._replace(input_ids=given.input_ids.astype(dtype, copy=False), weight=None)
            samples = join_samples([samples, given]) if items else given
        framed, is_open = self._frame.add(samples, ends)
        encoded = EncodedBatch(
            samples=framed,
            items=Items.of_samples(len(framed.lines)),
            rejects=sorted(held.rejects, key=lambda reject: reject.line),
            num_with_special=held.num_with_special,
            is_open=is_open,
            kinds=held.kinds,
        )
        return with_items(encoded, held.documents)

    def _encode_items(self, held: _Held) -> tuple[TokenBatch, list[Text]]:
        """Encode all items but those that have no tokens, which are rejected; return also those that are left."""
        items, rejects = held.items, held.rejects
        texts = [item.text for item in items if item.encoded is None]
        ranges = {number: item.encoded[1] for number, item in enumerate(items) if item.encoded is not None}
        others = [number for number in range(len(items)) if number not in ranges]
        prompts = {first: prompt for first, prompt in held.prompts.items() if isinstance(prompt, str)}
        plain = [*texts, *prompts.values()]
        # Without lengths of tokens, masks need offsets.
        if self._backend is self._reference and self._backends.lengths is None and any(item.spans for item in items):
            ids, found = self._reference.encode_with_ranges(plain)
            ranges |= dict(zip(others, found, strict=False))
        else:
            ids = self._backend.encode(plain)
        of_prompts = [ids.row(number) for number in range(len(texts), len(plain))]
        ids = Lists(ids.offsets[: len(texts) + 1], ids.values[: ids.offsets[len(texts)]])
        if len(texts) < len(items):
            rest = (ids.row(number) for number in range(len(texts)))
            ids = join_arrays([next(rest) if item.encoded is None else item.encoded[0] for item in items])
        self._check_ids(items, ids)
        lines = np.array([item.line for item in items], dtype=np.int64)
        loss_mask = mask_texts(self._backends, items, ids, ranges, self._check_same)
        samples = TokenBatch(lines, ids.offsets, ids.values, loss_mask)
        if held.prompts:
            encoded = held.prompts | dict(zip(prompts, of_prompts, strict=True))
            samples, num_changed = begin_after_prompts(samples, encoded)
            if num_changed:
                self.unused[DIFFERS] += num_changed
        is_empty = np.diff(samples.offsets) == 0
        if is_empty.any():
            is_empty = np.isin(lines, lines[is_empty])  # With the other samples of their items.
            rejects += [Reject(line, "is empty: it has no tokens") for line in np.unique(lines[is_empty]).tolist()]
            items = [item for item, is_one in zip(items, is_empty, strict=True) if not is_one]
            samples = take_samples(samples, np.flatnonzero(~is_empty))
        return samples, items

    def _check_ids(self, texts: list[Text], ids: Lists) -> None:
        """Compare sampled texts with the reference."""
        if self._backend is self._reference:
            return
        samples: list[tuple[Text, str, Any]] = []
        for number, item in enumerate(texts):
            text = item.text
            if item.encoded is not None or not self._comparison.takes(item.line, min(len(text), _CHECKED_CHARS)):
                continue
            row = ids.row(number)
            if len(text) > _CHECKED_CHARS:
                start = hash_line(item.line) % (len(text) - _CHECKED_CHARS)
                text = text[start : start + _CHECKED_CHARS]
                row = self._backend.encode([text]).row(0)
            samples.append((item, text, row))
        expected = self._reference.encode([text for _, text, _ in samples])
        for number, (item, _, row) in enumerate(samples):
            self._check_same(item, row, expected.row(number))

    def _check_same(self, item: Text, got: NDArray[np.int32], expected: NDArray[np.int32]) -> None:
        if not np.array_equal(got, expected):
            raise BackendMismatch(
                f"{self.backend_used} and tokenizers give different ids; this part is encoded by tokenizers",
                line=item.line,
            )
