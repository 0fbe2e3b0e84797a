"""The packing of a histogram, spfhp: equality with its twin, and its limit on samples."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

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
