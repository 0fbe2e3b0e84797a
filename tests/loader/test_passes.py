"""The passes over tokens, on both of their paths, against plain-Python twins."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packer_cli.loader import passes
from tests.loader import naive

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


@given(
    tokens=st.lists(st.tuples(st.integers(0, 2**31 - 1), st.integers(0, 1)), min_size=1, max_size=60), data=st.data()
)
def test_labels(tokens: list[tuple[int, int]], data: st.DataObject) -> None:
    """Ones at first tokens too, which the format forbids: they must not come through."""
    ids, mask = [token for token, _ in tokens], [loss for _, loss in tokens]
    firsts = data.draw(st.lists(st.integers(0, len(ids) - 1), unique=True).map(sorted))
    out = np.zeros(len(ids), dtype=np.int64)
    passes.write_labels(
        np.array(ids, dtype=np.int32), np.array(mask, dtype=np.int8), np.array(firsts, dtype=np.int32), out
    )
    assert out.tolist() == naive.labels(ids, mask, firsts)


@pytest.mark.parametrize("long_sample", [1024, 0], ids=["one pass", "sample by sample"])
@given(lengths=LENGTHS, seed=st.integers(0, 2**32 - 1))
def test_loss_tokens(long_sample: int, lengths: list[int], seed: int) -> None:
    borders = borders_of(lengths)
    mask = np.random.default_rng(seed).integers(0, 2, borders[-1]).astype(np.int8)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(passes, "_LONG_SAMPLE", long_sample)
        found = passes.count_loss_tokens(mask, borders, np.diff(borders).astype(np.int64), int(mask.sum()))
    assert found.dtype == np.int64
    assert found.tolist() == naive.loss_tokens(mask.tolist(), borders.tolist())


@pytest.mark.parametrize("length", [2**15 - 1, 2**15, 70_000])
def test_loss_tokens_do_not_overflow(length: int) -> None:
    """As many as a narrow sum could not hold, in a pack of so many samples that it is counted in one pass."""
    borders = np.array([0, length - 200, *range(length - 199, length + 1)], dtype=np.int32)
    mask = np.ones(length, dtype=np.int8)
    found = passes.count_loss_tokens(mask, borders, np.diff(borders).astype(np.int64), length)
    assert found.tolist() == [length - 200, *[1] * 200]
