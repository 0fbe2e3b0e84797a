"""The packings of a histogram, spfhp and nnlshp: equality with their twins, and the paper's figures."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packer_cli.plan.packing.nnlshp import _strategies, nnls
from tests import naive
from tests.plan.packing import assert_valid, instances, run


def composition(packs, lengths):
    """Samples of one length are alike."""
    return sorted(sorted(int(lengths[i]) for i in pack) for pack in packs)


@given(instance=instances(), max_samples=st.integers(0, 6))
def test_spfhp_equals_its_twin(instance, max_samples):
    lengths, capacity = instance
    packs = run(f"spfhp:max_samples={max_samples}", lengths, capacity)
    assert_valid(packs, lengths, capacity)
    expected = naive.worst_fit_decreasing(lengths.tolist(), capacity, max_samples)
    assert composition(packs, lengths) == composition(expected, lengths)
    assert all(lengths[pack].tolist() == sorted(lengths[pack].tolist(), reverse=True) for pack in packs)


@given(capacity=st.integers(5, 40), data=st.data(), max_samples=st.integers(0, 4))
def test_spfhp_equals_its_twin_where_many_samples_are_alike(capacity, data, max_samples):
    kinds = st.integers(1, capacity)
    lengths = np.array(data.draw(st.lists(st.sampled_from(data.draw(st.lists(kinds, min_size=1, max_size=3))))))
    lengths = lengths.astype(np.int32)
    packs = run(f"spfhp:max_samples={max_samples}", lengths, capacity)
    assert_valid(packs, lengths, capacity)
    expected = naive.worst_fit_decreasing(lengths.tolist(), capacity, max_samples)
    assert composition(packs, lengths) == composition(expected, lengths)


def test_spfhp_bounds_the_samples_of_a_pack():
    lengths = np.ones(100, dtype=np.int32)
    assert {len(pack) for pack in run("spfhp:max_samples=7", lengths, 50)} == {7, 2}


@given(
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=8, unique=True),
    room=st.integers(40, 60),
    free=st.integers(0, 3),
    depth=st.integers(1, 4),
)
def test_strategies_equal_their_twin(sizes, room, free, depth):
    sizes = sorted(sizes)
    found = _strategies(np.array(sizes, dtype=np.int64), room, free, depth)
    sets = [tuple(sizes[i] for i in row if i >= 0) for row in found]
    assert len(set(sets)) == len(sets)
    assert set(sets) == naive.strategies(sizes, room, free, depth)


@given(data=st.data(), num_rows=st.integers(1, 5), num_columns=st.integers(1, 6))
def test_least_squares_equal_every_set_of_columns(data, num_rows, num_columns):
    entry = st.integers(-1, num_rows - 1)
    rows = data.draw(st.lists(st.lists(entry, min_size=3, max_size=3), min_size=num_columns, max_size=num_columns))
    columns = np.array(rows, dtype=np.int32)
    target = np.array(data.draw(st.lists(st.integers(0, 50), min_size=num_rows, max_size=num_rows)), dtype=np.float64)
    weights = np.array(data.draw(st.lists(st.sampled_from([1.0, 0.0081]), min_size=num_rows, max_size=num_rows)))
    matrix = np.array([[np.count_nonzero(column == row) for column in columns] for row in range(num_rows)], float)
    found = nnls(columns, weights, target, 200)
    assert (found >= 0).all()
    rest = np.sqrt(weights) * (target - matrix @ found)
    least = naive.least_squares(np.sqrt(weights)[:, None] * matrix, np.sqrt(weights) * target)
    assert rest @ rest == pytest.approx(least, abs=1e-6)


def like_wikipedia(num_samples):
    """As BERT's sequences of at most 512 tokens: near a quarter are full, the others spread over all lengths."""
    rng = np.random.default_rng(0)
    lengths = np.clip(rng.lognormal(np.log(140), 0.9, num_samples), 5, 512).astype(np.int32)
    lengths[rng.random(num_samples) < 0.23] = 512
    return lengths


def test_nnlshp_fills_packs_of_three_as_the_paper_says():
    """Krell et al. report 99.7 % with at most three samples a pack."""
    lengths = like_wikipedia(200_000)
    packs = run("nnlshp", lengths, 512)
    assert_valid(packs, lengths, 512)
    assert lengths.sum() / (512 * len(packs)) > 0.996
    assert np.mean([len(pack) <= 3 for pack in packs]) > 0.97
    # Best-fit fills them with many more.
    assert np.mean([len(pack) <= 3 for pack in run("bfd", lengths, 512)]) < 0.9


@given(instance=instances(), depth=st.integers(1, 4), buckets=st.integers(1, 256), iterations=st.integers(1, 9))
def test_nnlshp_packs_with_any_options(instance, depth, buckets, iterations):
    lengths, capacity = instance
    packs = run(f"nnlshp:depth={depth},buckets={buckets},iterations={iterations}", lengths, capacity)
    assert_valid(packs, lengths, capacity)
