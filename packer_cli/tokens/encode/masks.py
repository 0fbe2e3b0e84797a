"""Loss masks: from ranges of a text to marks on its tokens.

If the bytes that each token stands for add up to the text's (see `byte_lengths`), their running sum gives each
token's place, so no offsets are needed; otherwise the caller gets offsets from `tokenizers`.

Price: 5 ns a token.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


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
        `(mask int8[t], exact bool[n])`: whether the lengths of each text add up; otherwise none of it is marked. With
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
        return np.repeat((np.arange(len(runs)) & 1).astype(np.int8), runs), exact
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
    mask = np.zeros(len(starts), dtype=np.int8 if weights is None else np.float32)
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
