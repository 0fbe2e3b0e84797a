"""Plain-Python twins of `format.loss_spans`, straight from docs/formats.md."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

Spans = tuple[list[int], list[int]]


def spans_of(loss_mask: Sequence[int]) -> Spans:
    """(starts, stops) of the runs of ones of one row."""
    starts, stops, place = [], [], 0
    for bit, run in groupby(loss_mask):
        begin, place = place, place + len(list(run))
        if bit:
            starts.append(begin)
            stops.append(place)
    return starts, stops


def weighted_spans_of(weights: Sequence[float]) -> tuple[list[int], list[int], list[float]]:
    """(starts, stops, weights) of the runs of equal weights above 0 of one row."""
    starts, stops, values, place = [], [], [], 0
    for weight, run in groupby(weights):
        begin, place = place, place + len(list(run))
        if weight:
            starts.append(begin)
            stops.append(place)
            values.append(weight)
    return starts, stops, values


def mask_of(starts: Sequence[int], stops: Sequence[int], num_tokens: int) -> list[int]:
    """The loss mask of one row."""
    return [int(any(a <= place < b for a, b in zip(starts, stops, strict=True))) for place in range(num_tokens)]


def are_right(starts: Sequence[int], stops: Sequence[int], lengths: Sequence[int]) -> bool:
    """Whether the spans of one row, whose samples have these lengths, keep the rules of the format."""
    begins = [sum(lengths[:number]) for number in range(len(lengths))]
    samples = [range(begin + 1, begin + length + 1) for begin, length in zip(begins, lengths, strict=True)]
    within = all(
        a < b and any(a in sample and b in sample for sample in samples) for a, b in zip(starts, stops, strict=True)
    )
    return within and all(b < a for b, a in zip(stops, starts[1:], strict=False))


def spans_of_samples(loss_mask: Sequence[int], lengths: Sequence[int]) -> Spans:
    """As `spans_of`, but no span crosses from one sample into the next."""
    starts: list[int] = []
    stops: list[int] = []
    begin = 0
    for length in lengths:
        of_sample = spans_of(loss_mask[begin : begin + length])
        starts += [begin + start for start in of_sample[0]]
        stops += [begin + stop for stop in of_sample[1]]
        begin += length
    return starts, stops
