"""The passes over tokens, on both of their paths, against plain-Python twins."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packer_cli.loader import passes
from tests.loader import naive
from tests.naive import loss_spans

LENGTHS = st.lists(st.integers(1, 40), min_size=1, max_size=40)


def borders_of(lengths: list[int]) -> np.ndarray:
    return np.cumsum([0, *lengths]).astype(np.int32)


@given(lengths=LENGTHS, part=st.tuples(st.floats(0, 1), st.floats(0, 1)), empty_tail=st.booleans())
def test_positions(lengths: list[int], part: tuple[float, float], empty_tail: bool) -> None:
    borders = borders_of([*lengths, 0] if empty_tail else lengths)
    start, stop = sorted(round(share * int(borders[-1])) for share in part)
    if start == stop:
        start, stop = 0, int(borders[-1])
    out = np.full(stop - start, -1, dtype=np.int64)
    passes.write_positions(borders, start, out)
    assert out.tolist() == naive.positions(borders.tolist(), start, stop - start)


def test_positions_of_a_row_longer_than_any_before() -> None:
    length = len(passes.ramp(1).base) + 5
    out = np.empty(length, dtype=np.int64)
    passes.write_positions(np.array([0, length], dtype=np.int32), 0, out)
    assert np.array_equal(out, np.arange(length))
    assert len(passes.ramp(length)) == length


@pytest.mark.parametrize("dtype", [np.uint16, np.int32])
@given(mask=st.lists(st.integers(0, 1), min_size=1, max_size=60), data=st.data())
def test_labels(dtype: type, mask: list[int], data: st.DataObject) -> None:
    """Ones at first tokens too, which the format forbids: they must not come through."""
    id = st.integers(0, np.iinfo(dtype).max)
    ids = data.draw(st.lists(id, min_size=len(mask), max_size=len(mask)))
    starts, stops = loss_spans.spans_of(mask)
    firsts = data.draw(st.lists(st.integers(0, len(ids) - 1), unique=True).map(sorted))
    out = np.zeros(len(ids), dtype=np.int64)
    passes.write_labels(
        np.array(ids, dtype=dtype),
        np.array(starts, dtype=np.int32),
        np.array(stops, dtype=np.int32),
        np.array(firsts, dtype=np.int32),
        out,
    )
    assert out.tolist() == naive.labels(ids, mask, firsts)


@pytest.mark.parametrize("few", [0, 100], ids=["one pass", "span by span"])
@given(lengths=LENGTHS, seed=st.integers(0, 2**32 - 1), part=st.tuples(st.floats(0, 1), st.floats(0, 1)))
def test_labels_of_a_part(few: int, lengths: list[int], seed: int, part: tuple[float, float]) -> None:
    """Spans that are cut, touch or are empty, as those of a slice may be."""
    num_tokens = sum(lengths)
    mask = np.random.default_rng(seed).integers(0, 2, num_tokens).tolist()
    start, stop = sorted(round(share * num_tokens) for share in part)
    starts, stops = (np.array(spans, dtype=np.int32) for spans in loss_spans.spans_of(mask))
    cut = passes.cut_spans(starts, stops, start, stop)
    assert loss_spans.mask_of(*(spans.tolist() for spans in cut), stop - start) == mask[start:stop]
    ids = np.arange(num_tokens, dtype=np.int32)
    wanted = naive.labels(ids.tolist(), mask, [])
    every_third = np.arange(start, stop, 3)
    taken = every_third.searchsorted(starts), every_third.searchsorted(stops)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(passes, "_FEW_SEGMENTS", few)
        for places, spans in ((np.arange(start, stop), cut), (every_third, taken)):
            out = np.zeros(len(places), dtype=np.int64)
            passes.write_labels(ids[places], *spans, np.zeros(0, dtype=np.int32), out)
            assert out.tolist() == [wanted[place] for place in places]


@given(lengths=LENGTHS, seed=st.integers(0, 2**32 - 1))
def test_loss_tokens(lengths: list[int], seed: int) -> None:
    borders = borders_of(lengths)
    mask = np.random.default_rng(seed).integers(0, 2, borders[-1])
    mask[borders[:-1]] = 0
    starts, stops = (np.array(spans, dtype=np.int32) for spans in loss_spans.spans_of(mask.tolist()))
    found = passes.count_loss_tokens(starts, stops, borders, int(mask.sum()))
    assert found.dtype == np.int64
    assert found.tolist() == naive.loss_tokens(mask.tolist(), borders.tolist())
