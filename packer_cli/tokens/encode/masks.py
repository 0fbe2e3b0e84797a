"""Loss masks: from ranges of a text to marks on its tokens.

If the bytes that each token stands for add up to the text's (see `byte_lengths`), their running sum gives each
token's place, so no offsets are needed; otherwise the caller gets offsets from `tokenizers`.

Price: 5 ns a token.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer_cli.errors import TokenizerError
from packer_cli.format.ragged import Lists
from packer_cli.tokens.encode.backends import CharRanges, GigatokenBackend, ReferenceBackend
from packer_cli.tokens.encode.byte_lengths import UNKNOWN_SPANS, ByteLengths, lengths_of
from packer_cli.tokens.encode.rows import Text
from packer_cli.tokens.tokenizer.loading import LoadedTokenizer

Mask = NDArray[Any]
"bool[t], or float32[t]: the weight of each token's loss"
Check = Callable[[Text, NDArray[np.int32], NDArray[np.int32]], None]


def mark_spans(
    offsets: NDArray[np.int64],
    lengths: NDArray[np.int64],
    sizes: NDArray[np.int64],
    span_offsets: NDArray[np.int64],
    spans: NDArray[np.int64],
    weights: NDArray[np.float32] | None = None,
) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """Mark the tokens that hold a unit (a byte, or half of one) of a span, for n texts with t tokens and m spans.

    Vectorised numpy rather than a kernel, so that tokenizing workers start without numba.

    Args:
        offsets: int64[n+1]
        lengths: int64[t], units of each token, all positive
        sizes: int64[n], units of each text
        span_offsets: int64[n+1]
        spans: int64[m, 2], first unit and one past the last, within their text, in order
        weights: float32[m], what to mark the tokens of each span with; None: 1. A token of two spans has the first's.

    Returns:
        `(mask bool[t], exact bool[n])`: whether the lengths of each text add up; otherwise none of it is marked. With
        weights, the mask is float32[t].
    """
    ends = np.cumsum(lengths)
    before = np.concatenate([np.zeros(1, np.int64), ends])[offsets]
    exact = np.diff(before) == sizes
    text_of_span = np.repeat(np.arange(len(sizes)), np.diff(span_offsets))
    marked = exact[text_of_span] & (spans[:, 1] > spans[:, 0])
    start = before[text_of_span[marked]]
    first = np.searchsorted(ends, start + spans[marked, 0], side="right")
    past = np.searchsorted(ends, start + spans[marked, 1] - 1, side="right") + 1
    first[1:] = np.maximum(first[1:], past[:-1])  # A token may be the last of one span and the first of the next.
    borders = np.column_stack([first, past]).reshape(-1)
    runs = np.diff(borders, prepend=0, append=len(lengths))
    if weights is None:
        return np.repeat((np.arange(len(runs)) & 1).astype(np.bool_), runs), exact
    values = np.zeros(len(runs), dtype=np.float32)
    values[1::2] = weights[marked]
    return np.repeat(values, runs), exact


def mask_by_offsets(
    starts: NDArray[np.int64],
    ends: NDArray[np.int64],
    spans: list[tuple[int, int]],
    *,
    whole_last_char: bool,
    weights: list[float] | None = None,
) -> NDArray[Any]:
    """Mask of t tokens from their char offsets, by the same rule as `mark_spans`; float32 with weights.

    Args:
        starts, ends: int64[t], untrimmed char ranges of the tokens (tokens that share a char all have its range).
    """
    mask: Mask = np.zeros(len(starts), dtype=np.bool_ if weights is None else np.float32)
    reached = np.maximum.accumulate(ends) if len(ends) else ends
    for number, (start, stop) in enumerate(spans):
        if stop <= start:
            continue
        first = int(np.searchsorted(reached, start, side="right"))
        if whole_last_char:
            past = int(np.searchsorted(np.maximum.accumulate(starts), stop, side="left"))
        else:
            past = int(np.searchsorted(reached, stop - 1, side="right")) + 1
        marked = mask[first:past]
        marked[marked == 0] = 1 if weights is None else weights[number]
    return mask


def mask_texts(
    backends: Backends, texts: list[Text], ids: Lists, ranges: Mapping[int, CharRanges], check: Check
) -> Mask | None:
    """Make the mask of all texts, before special tokens are added; None trains on all tokens.

    Args:
        ranges: char ranges of texts' tokens, by their numbers, as far as they are known.
        check: called with a text, its ids and the reference's ids whenever both are known.
    """
    is_weighted = any(item.is_weighted for item in texts)
    if not is_weighted and all(item.spans is None for item in texts):
        return None
    loss_mask: Mask = np.zeros(len(ids.values), dtype=np.float32 if is_weighted else np.bool_)
    others = list(range(len(texts)))
    if backends.lengths is not None:
        loss_mask, exact = _by_lengths(backends.lengths, texts, ids, is_weighted=is_weighted)
        others = np.flatnonzero(~exact).tolist()
    numbers = [number for number in others if texts[number].spans]
    if missing := [number for number in numbers if number not in ranges]:
        expected, found = backends.reference.encode_with_ranges([texts[number].text for number in missing])
        for row, number in enumerate(missing):
            check(texts[number], ids.row(number), expected.row(row))
        ranges = {**ranges, **dict(zip(missing, found, strict=True))}
    for number in numbers:
        item, (starts, ends) = texts[number], ranges[number]
        at = slice(ids.offsets[number], ids.offsets[number + 1])
        loss_mask[at] = mask_by_offsets(
            starts, ends, item.spans or [], whole_last_char=not item.is_chat, weights=item.weights
        )
    for number, item in enumerate(texts):
        if item.spans is None:
            loss_mask[ids.offsets[number] : ids.offsets[number + 1]] = item.end_weight
    return loss_mask


def _by_lengths(
    lengths: ByteLengths, texts: list[Text], ids: Lists, *, is_weighted: bool
) -> tuple[Mask, NDArray[np.bool_]]:
    """Make the mask of all texts, and say for which of them (bool[n]) it is known."""
    spans: list[tuple[int, int]] = []
    weights: list[float] = []
    counts, sizes = [], []
    locate = lengths.locate
    for _, text, wanted, is_chat, _, of_spans, _, encoded in texts:
        wanted = wanted if encoded is None else None
        size, found = locate(text, wanted, whole_last_char=not is_chat) if wanted else UNKNOWN_SPANS
        spans += found
        if is_weighted:
            weights += (of_spans or [1.0] * len(found)) if found else []
        counts.append(len(found))
        sizes.append(size)
    counted = np.array(counts, dtype=np.int64)
    # In half bytes, see `ByteLengths.of`. If the last char need not be whole, a range ends half a byte earlier.
    units = 2 * np.fromiter(chain.from_iterable(spans), np.int64, 2 * len(spans)).reshape(-1, 2)
    units[:, 1] -= np.repeat(np.array([item.is_chat for item in texts], dtype=np.int64), counted)
    return mark_spans(
        ids.offsets,
        lengths.of([item.text for item in texts], ids),
        2 * np.array(sizes, dtype=np.int64),
        np.concatenate([np.zeros(1, np.int64), np.cumsum(counted)]),
        units,
        np.array(weights, dtype=np.float32) if is_weighted else None,
    )


class Backends:
    """The ways to encode with one tokenizer.

    Price: for a vocabulary of 128,000 tokens gigatoken takes 0.4 s, the lengths 0.15 s.
    """

    def __init__(self, tokenizer: LoadedTokenizer):
        self.tokenizer = tokenizer

    @cached_property
    def reference(self) -> ReferenceBackend:
        """The `tokenizers` library."""
        return ReferenceBackend(self.tokenizer)

    @cached_property
    def gigatoken(self) -> GigatokenBackend | TokenizerError:
        """The fast one, or why gigatoken does not support this tokenizer."""
        try:
            return GigatokenBackend(self.tokenizer, self.reference)
        except TokenizerError as error:
            return error

    @cached_property
    def lengths(self) -> ByteLengths | None:
        """The bytes of each token, for masks; None if they are not known, as of tokenizers that are not fast."""
        fast = self.gigatoken
        return lengths_of(self.tokenizer, fast.pieces) if isinstance(fast, GigatokenBackend) else None

    def load(self) -> None:
        """Load everything now."""
        _ = self.reference, self.gigatoken, self.lengths, self.tokenizer.describe()
