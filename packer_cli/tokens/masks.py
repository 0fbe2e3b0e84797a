"""Loss masks: from ranges of a text to marks on its tokens.

Byte-level BPE keeps every byte of the text, so the bytes that each id stands for add up to the text's
UTF-8 bytes, and the running sum gives each token's place. No offsets from the tokenizer are needed. Where
the sum does not match (a normalizer changed the text) the caller asks `tokenizers` for offsets.

Price: 1 ns a token.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numba
import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

UNKNOWN_LENGTH = 1 << 40
"""Byte length of an id whose bytes in the text are not known; spoils the sum on purpose."""


@numba.njit(cache=True, nogil=True)
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

    Args:
        input_ids: int32[t]
        offsets: int64[n+1]
        byte_lengths: int64[vocabulary]; UNKNOWN_LENGTH where an id has no fixed bytes
        text_bytes: int64[n], UTF-8 length of each text
        span_offsets: int64[n+1]
        spans: int64[m, 2], first byte and one past the last, within their text
        loss_mask: int8[t], zeros; written
        exact: bool[n]; written: False where the bytes of the ids do not add up, and nothing was marked
    """
    for text in range(len(text_bytes)):
        start, stop = offsets[text], offsets[text + 1]
        total = 0
        for token in range(start, stop):
            total += byte_lengths[input_ids[token]]
        exact[text] = total == text_bytes[text]
        if total != text_bytes[text]:
            continue
        token, end_byte = start, 0
        for span in range(span_offsets[text], span_offsets[text + 1]):
            first, past = spans[span, 0], spans[span, 1]
            if past <= first:
                continue
            if end_byte > first:
                # The last token reached may hold this span's beginning too; spans come in order.
                token -= 1
                end_byte -= byte_lengths[input_ids[token]]
            while token < stop and end_byte + byte_lengths[input_ids[token]] <= first:
                end_byte += byte_lengths[input_ids[token]]
                token += 1
            while token < stop and end_byte < past:
                loss_mask[token] = 1
                end_byte += byte_lengths[input_ids[token]]
                token += 1


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
