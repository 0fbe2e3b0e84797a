"""The kernel against a plain twin and against offsets."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packer_cli.tokens.masks import UNKNOWN_LENGTH, byte_spans, mark_spans, mask_by_offsets


def naive_mask(lengths, spans):
    """1 for each token that holds a byte of a span."""
    covered = {byte for first, past in spans for byte in range(first, past)}
    mask, at = [], 0
    for length in lengths:
        mask.append(int(any(byte in covered for byte in range(at, at + length))))
        at += length
    return mask


def run(rows, sizes, spans_of_rows):
    """The kernel on lists; ids are the byte lengths themselves."""
    ids = np.array([length for row in rows for length in row], dtype=np.int32)
    offsets = np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(np.int64)
    span_offsets = np.concatenate([[0], np.cumsum([len(spans) for spans in spans_of_rows])]).astype(np.int64)
    spans = np.array([span for spans in spans_of_rows for span in spans], dtype=np.int64).reshape(-1, 2)
    table = np.arange(64, dtype=np.int64)
    table[63] = UNKNOWN_LENGTH
    mask, exact = np.zeros(len(ids), dtype=np.int8), np.zeros(len(rows), dtype=np.bool_)
    mark_spans(ids, offsets, table, np.array(sizes, dtype=np.int64), span_offsets, spans, mask, exact)
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


@pytest.mark.parametrize(("row", "size"), [([2, 3], 6), ([2, 3], 4), ([63, 2], 2)])
def test_bytes_that_do_not_add_up_mark_nothing(row, size):
    masks, exact = run([row, [2, 2]], [size, 4], [[(0, 1)], [(2, 4)]])
    assert exact == [False, True]
    assert masks == [[0, 0], [0, 1]]


@given(st.lists(st.text(alphabet="ab é你🙂", min_size=1, max_size=4), max_size=8), st.data())
@settings(max_examples=200)
def test_offsets_and_bytes_mark_the_same_tokens(pieces, data):
    text = "".join(pieces)
    borders = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    spans = list(zip(borders[0::2], borders[1::2], strict=False))
    ends = np.cumsum([len(piece) for piece in pieces], dtype=np.int64)
    starts = ends - np.array([len(piece) for piece in pieces], dtype=np.int64)
    lengths = [len(piece.encode()) for piece in pieces]
    for whole in (True, False):
        by_bytes, _ = run([lengths], [sum(lengths)], [byte_spans(text, spans, whole_last_char=whole)])
        by_offsets = mask_by_offsets(starts, ends, spans, whole_last_char=whole)
        assert by_offsets.tolist() == by_bytes[0]


def test_a_char_split_over_tokens_counts_by_its_first_token_at_the_end_of_a_range():
    # "é" is two tokens of one byte each, both with the char's range as transformers sees them.
    starts, ends = np.array([0, 1, 1, 2]), np.array([1, 2, 2, 3])
    assert mask_by_offsets(starts, ends, [(0, 2)], whole_last_char=False).tolist() == [1, 1, 0, 0]
    assert mask_by_offsets(starts, ends, [(0, 2)], whole_last_char=True).tolist() == [1, 1, 1, 0]
    for whole, expected in ((False, [1, 1, 0, 0]), (True, [1, 1, 1, 0])):
        spans = byte_spans("aéb", [(0, 2)], whole_last_char=whole)
        assert run([[1, 1, 1, 1]], [4], [spans])[0] == [expected]


def test_a_lone_surrogate_is_an_encode_error():
    with pytest.raises(UnicodeEncodeError):
        byte_spans("\ud800b", [(0, 2)], whole_last_char=True)
