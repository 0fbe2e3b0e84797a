"""The kernel against a plain twin and against offsets."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packer_cli.tokens.encode.masks import mark_spans, mask_by_offsets


def naive_mask(lengths, spans):
    """1 for each token that holds a byte of a span."""
    covered = {byte for first, past in spans for byte in range(first, past)}
    mask, at = [], 0
    for length in lengths:
        mask.append(int(any(byte in covered for byte in range(at, at + length))))
        at += length
    return mask


def run(rows, sizes, spans_of_rows):
    """The kernel on lists."""
    lengths = np.array([length for row in rows for length in row], dtype=np.int64)
    offsets = np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(np.int64)
    span_offsets = np.concatenate([[0], np.cumsum([len(spans) for spans in spans_of_rows])]).astype(np.int64)
    spans = np.array([span for spans in spans_of_rows for span in spans], dtype=np.int64).reshape(-1, 2)
    mask, exact = mark_spans(offsets, lengths, np.array(sizes, dtype=np.int64), span_offsets, spans)
    assert mask.dtype == np.bool_
    return [mask[a:b].tolist() for a, b in itertools.pairwise(offsets)], exact.tolist()


@st.composite
def rows_with_spans(draw):
    lengths = draw(st.lists(st.integers(1, 6), max_size=12))
    total = sum(lengths)
    borders = sorted(draw(st.lists(st.integers(0, total), max_size=8)))
    spans = list(zip(borders[0::2], borders[1::2], strict=False))
    return lengths, spans


@given(st.lists(rows_with_spans(), min_size=1, max_size=4))
@settings(max_examples=300)
def test_kernel_equals_its_naive_twin(rows):
    masks, exact = run([row for row, _ in rows], [sum(row) for row, _ in rows], [spans for _, spans in rows])
    assert exact == [True] * len(rows)
    assert masks == [naive_mask(*row) for row in rows]


@pytest.mark.parametrize(("row", "size"), [([2, 3], 6), ([2, 3], 4), ([1 << 30, 2], 2)])
def test_bytes_that_do_not_add_up_mark_nothing(row, size):
    masks, exact = run([row, [2, 2]], [size, 4], [[(0, 1)], [(2, 4)]])
    assert exact == [False, True]
    assert masks == [[0, 0], [0, 1]]


def test_a_char_split_over_tokens_counts_by_its_first_token_at_the_end_of_a_range():
    # "é" is two tokens of one byte each, both with the char's range as transformers sees them.
    starts, ends = np.array([0, 1, 1, 2]), np.array([1, 2, 2, 3])
    assert mask_by_offsets(starts, ends, [(0, 2)], whole_last_char=False).tolist() == [1, 1, 0, 0]
    assert mask_by_offsets(starts, ends, [(0, 2)], whole_last_char=True).tolist() == [1, 1, 1, 0]
