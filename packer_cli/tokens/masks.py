"""Loss masks: from ranges of a text to marks on its tokens.

Byte-level BPE keeps every byte of the text, so the bytes that each id stands for add up to the text's
UTF-8 bytes, and the running sum gives each token's place. No offsets from the tokenizer are needed. Where
the sum does not match (a normalizer changed the text) the caller asks `tokenizers` for offsets.

Price: 10 ns a token.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

UNKNOWN_LENGTH = 1 << 40
"""Byte length of an id whose bytes in the text are not known; spoils the sum on purpose."""


def mark_spans(
    input_ids: NDArray[np.int32],
    offsets: NDArray[np.int64],
    byte_lengths: NDArray[np.int64],
    text_bytes: NDArray[np.int64],
    span_offsets: NDArray[np.int64],
    spans: NDArray[np.int64],
    loss_mask: NDArray[np.int8],
    exact: NDArray[np.bool_],
) -> None:
    """Mark the tokens that hold a byte of a span, for n texts with t tokens and m spans.

    Vectorised numpy rather than a kernel: tokenizing workers then start without numba.

    Args:
        input_ids: int32[t]
        offsets: int64[n+1]
        byte_lengths: int64[vocabulary]; UNKNOWN_LENGTH where an id has no fixed bytes
        text_bytes: int64[n], UTF-8 length of each text
        span_offsets: int64[n+1]
        spans: int64[m, 2], first byte and one past the last, within their text, in order
        loss_mask: int8[t], zeros; written
        exact: bool[n]; written: False where the bytes of the ids do not add up, and nothing was marked
    """
    ends = np.cumsum(byte_lengths[input_ids])
    before = np.concatenate([np.zeros(1, np.int64), ends])[offsets]
    np.equal(np.diff(before), text_bytes, out=exact)
    text_of_span = np.repeat(np.arange(len(text_bytes)), np.diff(span_offsets))
    marked = exact[text_of_span] & (spans[:, 1] > spans[:, 0])
    start = before[text_of_span[marked]]
    # Several tokens may end at the same byte where one is empty: the first that goes beyond holds the byte.
    first = np.searchsorted(ends, start + spans[marked, 0], side="right")
    last = np.searchsorted(ends, start + spans[marked, 1] - 1, side="right")
    change = np.zeros(len(input_ids) + 1, dtype=np.int64)
    np.add.at(change, first, 1)
    np.add.at(change, last + 1, -1)
    loss_mask[:] = np.cumsum(change[:-1]) > 0


def byte_spans(text: str, spans: list[tuple[int, int]], *, whole_last_char: bool) -> list[tuple[int, int]]:
    """Char ranges as ranges of UTF-8 bytes.

    whole_last_char: False ends a range after the first byte of its last char. A char may be split over
    tokens, and then transformers' `assistant_masks` marks only the first of them at the end of a range.

    Raises: UnicodeEncodeError (a lone surrogate).
    """
    if text.isascii():
        return spans
    result = []
    chars = size = 0
    for start, stop in spans:
        size += len(text[chars:start].encode())
        first = size
        last = max(start, stop - 1)
        size += len(text[start:last].encode())
        begin_last = size
        size += len(text[last:stop].encode())
        chars = stop
        result.append((first, size if whole_last_char or stop <= start else begin_last + 1))
    return result


def mask_by_offsets(
    starts: NDArray[np.int64],
    ends: NDArray[np.int64],
    spans: list[tuple[int, int]],
    *,
    whole_last_char: bool,
) -> NDArray[np.int8]:
    """Mask of t tokens from their char offsets, by the same rule as `mark_spans`.

    starts, ends: int64[t], char ranges of the tokens, without trimming (several tokens of one char all
    have that char's range).
    """
    mask = np.zeros(len(starts), dtype=np.int8)
    reached = np.maximum.accumulate(ends) if len(ends) else ends
    for start, stop in spans:
        if stop <= start:
            continue
        first = int(np.searchsorted(reached, start, side="right"))
        if whole_last_char:
            past = int(np.searchsorted(np.maximum.accumulate(starts), stop, side="left"))
        else:
            past = int(np.searchsorted(reached, stop - 1, side="right")) + 1
        mask[first:past] = 1
    return mask
