"""The packings that partition, lpt and kk: equality with their twins, and how even their packs are."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packer_cli.plan.core.bounds import packs_lower_bound
from packer_cli.plan.core.streams import rng_state
from tests import naive
from tests.plan.packing import assert_valid, instances, run

COSTS = {"work": lambda length, linear: length * (length + linear), "tokens": lambda length, linear: length}


LINEARS = st.sampled_from([0, 0, 1, 50, 2**31 - 2])


@pytest.mark.parametrize("objective", list(COSTS))
@given(instance=instances(max_size=40), linear=LINEARS)
def test_lpt_equals_its_twin(objective, instance, linear):
    lengths, capacity = instance
    packs = run(f"lpt:objective={objective}", lengths, capacity, linear=linear)
    cost = partial(COSTS[objective], linear=linear)
    assert packs == naive.longest_processing_time(lengths.tolist(), capacity, cost)


@pytest.mark.parametrize("objective", list(COSTS))
@given(
    instance=instances(max_size=30),
    window=st.sampled_from([1, 2, 5, 64]),
    seed=st.integers(0, 2**32),
    linear=LINEARS,
)
def test_kk_equals_its_twin(objective, instance, window, seed, linear):
    lengths, capacity = instance
    packs = run(f"kk:objective={objective},window={window}", lengths, capacity, seed, linear)
    state = int(rng_state(seed)[0])
    cost = partial(COSTS[objective], linear=linear)
    expected = naive.karmarkar_karp(lengths.tolist(), capacity, window, cost, state)
    assert [sorted(pack) for pack in packs] == [sorted(pack) for pack in expected]


def test_kk_finds_the_textbook_difference():
    """Karmarkar and Karp's own example: 8 7 6 5 4 differ by 2 in two parts."""
    packs = run("kk:window=2", np.array([8, 7, 6, 5, 4], dtype=np.int32), 16)
    assert sorted(sum([8, 7, 6, 5, 4][i] for i in pack) for pack in packs) == [14, 16]


def test_kk_opens_packs_where_parts_are_too_full():
    """Both parts of the bound hold too much, and nothing fits elsewhere."""
    lengths = np.array([6, 6, 4, 4, 4, 4, 2], dtype=np.int32)
    packs = run("kk:objective=work", lengths, 10)
    assert_valid(packs, lengths, 10)
    assert len(packs) > packs_lower_bound(lengths, 10)


@pytest.mark.parametrize("name", ["lpt", "kk:objective=work"])
def test_partitioning_makes_packs_more_even_than_best_fit(name):
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, 400, 3000).astype(np.int32)

    def unevenness(packs):
        work = np.array([(lengths[pack].astype(np.int64) ** 2).sum() for pack in packs])
        return work.std() / work.mean()

    assert unevenness(run(name, lengths, 4096)) < 0.4 * unevenness(run("bfd", lengths, 4096))
