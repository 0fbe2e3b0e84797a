"""Next-fit, first-fit, best-fit, isf and the baselines: equality with their twins, and a theorem."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packer_cli.plan.core.streams import rng_state
from packer_cli.plan.packing import best_fit
from packer_cli.plan.packing.isf import fill, iterative_sampling_filling
from tests import naive
from tests.plan.packing import instances, run


@given(instance=instances())
def test_next_fit_equals_its_twin(instance):
    lengths, capacity = instance
    assert run("next-fit", lengths, capacity) == naive.next_fit(lengths.tolist(), capacity)


@pytest.mark.parametrize("name", ["ffd", "bfd", "bfd-split", "ffs", "bfs"])
@given(instance=instances(), seed=st.integers(0, 2**32))
def test_first_and_best_fit_equal_their_twins(name, instance, seed):
    lengths, capacity = instance
    twin = naive.first_fit if name in ("ffd", "ffs") else naive.best_fit
    is_shuffled = name in ("ffs", "bfs")
    order = naive.shuffled(len(lengths), int(rng_state(seed)[0])) if is_shuffled else naive.descending(lengths)
    assert run(name, lengths, capacity, seed) == twin(lengths.tolist(), order, capacity)


@given(instance=instances(), seed=st.integers(0, 2**32), block=st.integers(1, 9))
def test_best_fit_in_blocks_is_best_fit(instance, seed, block):
    lengths, capacity = instance
    whole = run("bfs", lengths, capacity, seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(best_fit, "_BLOCK", block)
        assert run("bfs", lengths, capacity, seed) == whole


@given(instance=instances(), seed=st.integers(0, 2**32))
def test_baselines_equal_their_twins(instance, seed):
    lengths, capacity = instance
    orders = {"random": naive.shuffled(len(lengths), int(rng_state(seed)[0])), "sorted": naive.descending(lengths)}
    for name, order in orders.items():
        assert run(name, lengths, capacity, seed) == naive.in_order(lengths.tolist(), order, capacity)
    assert run("none", lengths, capacity) == [[i] for i in range(len(lengths))]


@given(
    instance=instances(),
    seed=st.integers(0, 2**32),
    rounds=st.integers(1, 6),
    threshold=st.sampled_from([0.0, 0.5, 0.9, 1.0]),
    bits=st.integers(0, 3),
)
def test_isf_equals_its_twin(instance, seed, rounds, threshold, bits):
    lengths, capacity = instance
    least = int(np.ceil(threshold * capacity))
    once = partial(fill, lengths, capacity)
    offsets, order = iterative_sampling_filling(once, len(lengths), least, rounds, bits, rng_state(seed))
    expected = naive.iterative_sampling_filling(
        lengths.tolist(), capacity, least, rounds, int(rng_state(seed)[0]), bits
    )
    assert naive.packs_of(offsets, order) == expected


@pytest.mark.parametrize("name", ["bfd", "ffd"])
@given(instance=instances(max_size=8))
def test_decreasing_algorithms_keep_their_theorem(name, instance):
    """Dosa 2007: FFD needs at most 11/9 of the optimum + 6/9; Johnson 1973 gives BFD 11/9 + 4."""
    lengths, capacity = instance
    fewest = naive.fewest_packs(lengths.tolist(), capacity)
    extra = 6 / 9 if name == "ffd" else 4
    assert len(run(name, lengths, capacity)) <= 11 / 9 * fewest + extra
