"""The tokens that carry a loss, as spans: two lists a row, `loss_starts` and `loss_stops`, of half-open [start, stop).

A row is a sample of the token store or a pack. Its spans are in ascending order and do not touch, and none holds the
first token of a sample, which nothing predicts. So spans never cross from one sample into the next, and the sum of
their lengths is the number of loss tokens.

Where tokens have weights, a third list, `loss_weights`, has that of each span, above 0; spans of unlike weights may
touch. The weight of a row is the sum of its tokens' weights, each token of a set without weights counting 1.
"""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from packer_cli.format.arrays import Columns

Int64Array = NDArray[np.int64]
T = TypeVar("T", bound=np.generic)

STARTS, STOPS = "loss_starts", "loss_stops"
"""The columns, list<int32>."""
WEIGHTS = "loss_weights"
"""The column of a set with weights, list<float>."""


def mask_to_spans(mask: NDArray[T], borders: Int64Array) -> tuple[Int64Array, Int64Array, NDArray[T]]:
    """Find the runs of equal weights above 0, without samples' first tokens: (starts, stops, weights), [s] each. O(t).

    Args:
        mask: [t], the weight of each token; 0 or 1 where there are no weights.
        borders: int64[n+1], from 0 to t: where samples begin; none is empty.

    >>> [spans.tolist() for spans in mask_to_spans(np.array([1, 1, 1, 0.5, 0, 2]), np.array([0, 2, 6]))]
    [[1, 3, 5], [2, 4, 6], [1.0, 0.5, 2.0]]
    """
    of_token = np.zeros(len(mask) + 2, dtype=mask.dtype)
    of_token[1:-1] = mask
    of_token[borders[:-1] + 1] = 0
    edges = np.flatnonzero(of_token[1:] != of_token[:-1])
    starts, stops = edges[:-1], edges[1:]
    values = of_token[starts + 1]
    has_loss = values > 0
    return starts[has_loss], stops[has_loss], values[has_loss]


def spans_to_weights(
    starts: NDArray[Any], stops: NDArray[Any], weights: NDArray[Any] | None, num_tokens: int
) -> NDArray[Any]:
    """Find the weight of each token, 0 outside the spans: [t], of the type of the weights. O(t).

    Args:
        starts, stops, weights: [s], in order; spans may touch or be empty. No weights are ones of int8.

    >>> spans_to_weights(np.array([1, 5]), np.array([2, 6]), None, 7).tolist()
    [0, 1, 0, 0, 0, 1, 0]
    """
    borders = np.zeros(2 * len(starts) + 2, dtype=np.int64)
    borders[1:-1:2], borders[2:-1:2], borders[-1] = starts, stops, num_tokens
    values = np.zeros(len(borders) - 1, dtype=np.int8 if weights is None else weights.dtype)
    values[1::2] = 1 if weights is None else weights
    return values.repeat(borders[1:] - borders[:-1])


def count_by_row(starts: NDArray[Any], stops: NDArray[Any], offsets: NDArray[Any]) -> Int64Array:
    """Count the loss tokens of each row: int64[r].

    Args:
        starts, stops: integers [s].
        offsets: integers [r+1]: the spans of row k are `offsets[k]` to `offsets[k + 1] - 1`.
    """
    ends = np.concatenate([[0], np.cumsum(stops.astype(np.int64) - starts)])
    found: Int64Array = np.diff(ends[offsets])
    return found


def find_wrong_row(
    starts: NDArray[Any],
    stops: NDArray[Any],
    offsets: NDArray[Any],
    token_offsets: NDArray[Any],
    borders: NDArray[Any] | None = None,
    weights: NDArray[np.float32] | None = None,
) -> int | None:
    """Find the first row whose spans break a rule (see the module); None where all keep them. O(s log n).

    Args:
        starts, stops: integers [s], positions in the row.
        offsets: integers [r+1], rising from 0 to s: the spans of each row.
        token_offsets: integers [r+1], rising from 0 to t: the tokens of each row.
        borders: integers [n+1], rising from 0 to t: where the samples of all rows begin; None: a row is one sample.
        weights: float32[s], of each span; None: there are none.
    """
    num_spans = np.diff(offsets)
    begin = np.repeat(token_offsets[:-1].astype(np.int64), num_spans)
    first, past = starts + begin, stops + begin
    wrong = (starts < 1) | (starts >= stops) | (stops > np.repeat(np.diff(token_offsets), num_spans))
    wrong[1:] |= first[1:] < past[:-1]
    touches = first[1:] == past[:-1]
    if weights is not None:
        wrong |= ~((weights > 0) & np.isfinite(weights))
        touches &= weights[1:] == weights[:-1]
    wrong[1:] |= touches
    if borders is not None:
        sample = np.clip(np.searchsorted(borders, first, side="right") - 1, 0, len(borders) - 2)
        wrong |= (first == borders[sample]) | (past > borders[sample + 1])
    return int(np.searchsorted(offsets, wrong.argmax(), side="right")) - 1 if wrong.any() else None


def span_columns(columns: Columns) -> list[NDArray[Any]]:
    """Return the offsets of the spans of each row, starts, stops and, if there are any, weights. Raises as
    `find_wrong_spans`."""
    spans = [columns[name] for name in (STARTS, STOPS, WEIGHTS) if name in columns]
    if not all(np.array_equal(each.offsets, spans[0].offsets) for each in spans):
        raise ValueError("its loss spans have different numbers of starts, stops and weights")
    return [spans[0].offsets, *(each.values for each in spans)]


def find_wrong_spans(columns: Columns, borders: NDArray[Any] | None = None) -> int | None:
    """Find the first row of a part or shard whose spans break a rule or are not as many tokens as it counts; None: no
    row.

    Args:
        columns: with tokens.
        borders: as for `find_wrong_row`.

    Raises:
        ValueError: they do not have one start, stop and weight for each span.
    """
    offsets, starts, stops, *weights = span_columns(columns)
    wrong = find_wrong_row(starts, stops, offsets, columns["input_ids"].offsets, borders, *weights)
    return find_other_count(columns) if wrong is None else wrong


def find_other_count(columns: Columns) -> int | None:
    """Find the first row of a part or shard whose spans are not as many tokens as it counts; None: no row."""
    offsets, starts, stops, *_ = span_columns(columns)
    differing = np.flatnonzero(count_by_row(starts, stops, offsets) != columns["num_loss_tokens"])
    return int(differing[0]) if len(differing) else None
