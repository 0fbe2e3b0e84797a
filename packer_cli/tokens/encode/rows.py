"""A document's forms inside the encoder and after it, and the tokens that are added around it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from packer_cli.corpus.types import RecordSchema, Reject, TokenBatch
from packer_cli.errors import TokenizerError
from packer_cli.format.constants import ITEM_VALUES
from packer_cli.tokens.encode.backends import CharRanges
from packer_cli.tokens.tokenizer.loading import LoadedTokenizer

AppendEos = Literal["auto", "always", "never"]


class Text(NamedTuple):
    """A text on its way to the backend."""

    line: int
    text: str
    spans: list[tuple[int, int]] | None
    """Char ranges to train on; None: the whole text, and the tokens added around it."""
    is_chat: bool
    """Whether a template wrote the text, including everything around it: the ids of the post-processor, too."""
    may_close: bool = True
    """Whether EOS may follow: the text ends with what the model generates."""
    weights: list[float] | None = None
    """Weight of the loss of each of `spans`; None: 1."""
    end_weight: float = 1.0
    """Weight of the loss of tokens that are added after the text, and without `spans` of all of it; 0: they have
    none."""
    encoded: tuple[NDArray[np.int32], CharRanges] | None = None
    """Ids of a text in which tokens are wrapped (`specials`), and the chars that they cover; None: the backend makes
    the ids."""

    @property
    def is_weighted(self) -> bool:
        """Whether a token has a loss of another weight than 1."""
        return self.weights is not None or self.end_weight not in (0.0, 1.0)


class Items(NamedTuple):
    """The items of a batch, whose samples are their branches, see `format.trees`."""

    offsets: NDArray[np.int64]
    """int64[i+1]: item k has the samples `offsets[k]` to `offsets[k + 1] - 1`, all of one line."""
    kinds: NDArray[np.int8]
    """int8[i]"""
    roles: NDArray[np.int16]
    """int8[n]: of each sample"""
    rewards: NDArray[np.float32]
    """float32[n]: of each sample; NaN: it has none"""
    values: dict[str, NDArray[np.float32]]
    """float32[i] each, by the names in `ITEM_VALUES`; NaN where an item has none"""

    @classmethod
    def of_samples(cls, num_samples: int) -> Items:
        """Take each sample as an item."""
        none = np.full(num_samples, np.nan, dtype=np.float32)
        zeros = np.zeros(num_samples, dtype=np.int8)
        return cls(np.arange(num_samples + 1), zeros, zeros.astype(np.int16), none, dict.fromkeys(ITEM_VALUES, none))


@dataclass(frozen=True, kw_only=True)
class EncodedBatch:
    """The samples of some records."""

    samples: TokenBatch
    """Ids are int32, or uint16 where all were given and the vocabulary fits.

    The first token of a sample may have a loss here; it never carries one, since nothing predicts it, and the token
    store has none there.
    """
    is_open: NDArray[np.bool_]
    """bool[n]: whether the last token, blanks aside, is neither EOS nor a special token that the chat template
    writes."""
    rejects: list[Reject]
    """Records that gave no sample: those that could not be read, or encoded (a template that raises, an empty result);
    in the order of lines."""
    num_with_special: int = 0
    """Records whose own contents hold the text of a special token."""
    kinds: dict[int, RecordSchema] = field(default_factory=dict)
    """Kinds of the documents, by line; all other samples were given as tokens."""
    items: Items
    """Items that the samples are, or of which the samples are the branches."""


ENDS = np.dtype([("is_chat", "?"), ("may_close", "?"), ("end_weight", "f4")])
"""The facts about samples that `Frame` asks for, see `Text`."""


class Frame:
    """Adds the post-processor's ids and EOS around samples.

    `auto` appends EOS to each sample that may be closed and has no end: its last non-blank token is neither EOS nor a
    special token that the chat template writes. `always` appends it to each sample that does not end with EOS.
    Price: 3 ns a token if anything is added, else 50 us a batch.
    """

    def __init__(self, tokenizer: LoadedTokenizer, *, append_eos: AppendEos):
        self._append_eos = append_eos
        self._eos = -1 if tokenizer.eos_token_id is None else tokenizer.eos_token_id
        self._before = np.array(tokenizer.prefix_ids, dtype=np.int32)
        self._after = np.array(tokenizer.suffix_ids, dtype=np.int32)
        self._ends = np.zeros(tokenizer.vocab_size, dtype=np.bool_)
        self._ends[_end_ids(tokenizer)] = True
        decode = tokenizer.hf.backend_tokenizer.decode
        self._is_blank = cache(lambda number: not decode([number], skip_special_tokens=False).strip())
        self._special_tokens = tokenizer.special_tokens

    def add(self, samples: TokenBatch, ends: NDArray[Any]) -> tuple[TokenBatch, NDArray[np.bool_]]:
        """Add these tokens to the samples; return also which of them (bool[n]) are left without an end.

        Tokens before a sample carry a loss if its first token does.

        Args:
            ends: `ENDS`[n].

        Raises:
            TokenizerError: EOS must follow a sample, and the tokenizer has none.
        """
        _, offsets, input_ids, loss_mask, _ = samples
        starts, stops, is_plain = offsets[:-1], offsets[1:], ~ends["is_chat"]
        last, has_end = input_ids[stops - 1], self._has_end(samples)
        before, after = self._before, self._after
        if len(after):
            last = np.where(is_plain, after[-1], last)
            has_end = np.where(is_plain, self._ends[after[-1]], has_end)
        closed = np.zeros(len(starts), dtype=np.bool_)
        if self._append_eos == "always":
            closed = last != self._eos
        elif self._append_eos == "auto":
            closed = ends["may_close"] & ~has_end
            if self._eos < 0 and closed.any():
                raise no_eos(self._special_tokens)
        is_open = ~has_end & ~closed
        plain = np.flatnonzero(is_plain) if len(before) or len(after) else np.zeros(0, dtype=np.int64)
        # At equal positions, the end of a sample comes before the beginning of the next.
        places = [np.repeat(stops[plain], len(after)), stops[closed], np.repeat(starts[plain], len(before))]
        at = np.concatenate(places)
        if not len(at):
            return samples, is_open
        eos = np.full(len(places[1]), self._eos, dtype=np.int32)
        ids = np.concatenate([np.tile(after, len(plain)), eos, np.tile(before, len(plain))])
        order = np.argsort(at, kind="stable")
        if loss_mask is not None:
            added = [
                np.repeat(ends["end_weight"][plain], len(after)),
                ends["end_weight"][closed],
                np.repeat(loss_mask[starts[plain]], len(before)),
            ]
            loss_mask = np.insert(loss_mask, at[order], np.concatenate(added).astype(loss_mask.dtype)[order])
        sizes = np.diff(offsets) + is_plain * (len(before) + len(after)) + closed
        framed = samples._replace(
            offsets=np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(sizes)]),
            input_ids=np.insert(input_ids, at[order], ids[order]),
            loss_mask=loss_mask,
        )
        return framed, is_open

    def _has_end(self, samples: TokenBatch) -> NDArray[np.bool_]:
        """Find whether the last non-blank token is EOS or a special token of the template, bool[n]."""
        offsets, input_ids = samples.offsets, samples.input_ids
        at = offsets[1:] - 1
        last = input_ids[at]
        has_end: NDArray[np.bool_] = self._ends[last]
        rows = self._blank(np.arange(len(at)), last)
        while len(rows):
            at[rows] -= 1
            rows = rows[at[rows] >= offsets[rows]]
            last = input_ids[at[rows]]
            has_end[rows] = self._ends[last]
            rows = self._blank(rows, last)
        return has_end

    def _blank(self, rows: NDArray[np.int64], last: NDArray[np.int32]) -> NDArray[np.int64]:
        """Choose the rows whose last ids stand only for white space."""
        return rows[np.fromiter(map(self._is_blank, last.tolist()), np.bool_, len(rows))]


_KNOWN_EOS = ("<|endoftext|>", "</s>", "<eos>", "<|end_of_text|>", "<|eot_id|>", "<|im_end|>")


def no_eos(special_tokens: Collection[str]) -> TokenizerError:
    """Make the error for samples that end with EOS, where the tokenizer has none.

    Args:
        special_tokens: of the tokenizer.
    """
    known = next((token for token in _KNOWN_EOS if token in special_tokens), None)
    some = f", perhaps {known}" if known else ""
    return TokenizerError(
        "texts, completions and chats that the template leaves open end with EOS, and the tokenizer has none; name a "
        f"token of its vocabulary with --eos-token TOKEN{some}, or leave them open with --append-eos never"
    )


def _end_ids(tokenizer: LoadedTokenizer) -> list[int]:
    """Return EOS, and the special tokens in the chat template, which include those that end its turns."""
    named = tokenizer.special_tokens_map
    no_ends = {named.get("bos_token"), named.get("unk_token"), None}
    templates = (tokenizer.chat_template or "") + (tokenizer.tool_template or "")
    written = [token for token in tokenizer.special_tokens if token in templates and token not in no_ends]
    ids = {tokenizer.added_tokens[token] for token in written}
    return sorted(ids if tokenizer.eos_token_id is None else ids | {tokenizer.eos_token_id})
