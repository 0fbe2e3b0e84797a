"""Loss spans and masks, against plain-Python twins."""

from __future__ import annotations

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from packer_cli.format.loss_spans import count_by_row, find_wrong_row, mask_to_spans, spans_to_weights
from tests.naive import loss_spans as naive

MASKS = st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=9), max_size=9)
ROWS = st.lists(
    st.tuples(
        st.lists(st.integers(1, 4), min_size=1, max_size=3),
        st.lists(st.tuples(st.integers(-1, 9), st.integers(-1, 9))),
    ),
    max_size=4,
)


def ends_of(sizes: list[int]) -> np.ndarray:
    return np.cumsum([0, *sizes])


@given(masks=MASKS)
def test_spans_of_a_mask_and_back(masks: list[list[int]]) -> None:
    """Ones at the first tokens of samples, which nothing predicts, do not come through."""
    borders = ends_of([len(mask) for mask in masks])
    starts, stops, _ = mask_to_spans(np.array([bit for mask in masks for bit in mask], dtype=np.int8), borders)
    cleared = [bit for mask in masks for bit in [0, *mask[1:]]]
    assert (starts.tolist(), stops.tolist()) == naive.spans_of(cleared)
    assert spans_to_weights(starts, stops, None, len(cleared)).tolist() == cleared
    assert naive.mask_of(starts.tolist(), stops.tolist(), len(cleared)) == cleared
    offsets = np.searchsorted(starts, borders)
    assert count_by_row(starts, stops, offsets).tolist() == [sum(mask[1:]) for mask in masks]
    begin = np.repeat(borders[:-1], np.diff(offsets))
    assert find_wrong_row(starts - begin, stops - begin, offsets, borders) is None


@given(rows=ROWS)
@example(rows=[([2, 3], [(1, 2), (3, 5)]), ([4], [(1, 2), (2, 3)])])  # They touch.
@example(rows=[([2], [(1, 3)]), ([4], [])])  # Into the next row.
@example(rows=[([2], []), ([4], [(-1, 0)])])  # In the row before.
@example(rows=[([2, 3], [(1, 3)])])  # Into the next sample.
@example(rows=[([9], [(5, 6), (1, 2)])])
def test_wrong_spans_are_found(rows: list[tuple[list[int], list[tuple[int, int]]]]) -> None:
    starts, stops = (np.array([span[i] for _, spans in rows for span in spans], dtype=np.int32) for i in (0, 1))
    offsets = ends_of([len(spans) for _, spans in rows])
    token_offsets = ends_of([sum(lengths) for lengths, _ in rows])
    borders = ends_of([length for lengths, _ in rows for length in lengths])
    wrong = [
        number
        for number, (lengths, spans) in enumerate(rows)
        if not naive.are_right([a for a, _ in spans], [b for _, b in spans], lengths)
    ]
    assert find_wrong_row(starts, stops, offsets, token_offsets, borders) == (wrong[0] if wrong else None)
    if all(len(lengths) == 1 for lengths, _ in rows):
        assert find_wrong_row(starts, stops, offsets, token_offsets) == (wrong[0] if wrong else None)
