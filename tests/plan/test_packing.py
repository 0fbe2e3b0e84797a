"""Every packing algorithm: the invariants, and equality with its naive twin."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packer_cli.plan.bounds import packs_lower_bound
from packer_cli.plan.packing import REGISTRY, parse_packing
from packer_cli.plan.packing.isf import IsfOptions
from packer_cli.plan.random import rng_state
from tests import naive

NAMES = list(REGISTRY)


@st.composite
def instances(draw, max_size=60):
    capacity = draw(st.integers(1, 200))
    lengths = draw(st.lists(st.integers(1, capacity), max_size=max_size))
    return np.array(lengths, dtype=np.int32), capacity


def run(name, lengths, capacity, seed=0):
    algorithm, options = parse_packing(name, REGISTRY)
    offsets, order = algorithm.pack(lengths, capacity, seed, options)
    return naive.packs_of(offsets, order)


def assert_valid(packs, lengths, capacity):
    assert sorted(i for pack in packs for i in pack) == list(range(len(lengths)))
    assert all(pack for pack in packs)
    assert all(sum(int(lengths[i]) for i in pack) <= capacity for pack in packs)


@pytest.mark.parametrize("name", NAMES)
@given(instance=instances(), seed=st.integers(0, 2**64))
def test_every_sample_is_in_exactly_one_pack(name, instance, seed):
    lengths, capacity = instance
    assert_valid(run(name, lengths, capacity, seed), lengths, capacity)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("lengths", "capacity", "fewest"),
    [
        ([], 10, 0),
        ([7], 10, 1),
        ([10, 10, 10], 10, 3),
        ([5] * 8, 10, 4),
        ([1] * 100, 100, 1),
    ],
)
def test_edges_are_packed_optimally(name, lengths, capacity, fewest):
    packs = run(name, np.array(lengths, dtype=np.int32), capacity)
    assert_valid(packs, lengths, capacity)
    assert len(packs) == fewest


@pytest.mark.parametrize("name", NAMES)
def test_totals_over_2_to_31_do_not_overflow(name):
    lengths = np.full(2**13, 2**18 + 1, dtype=np.int32)
    packs = run(name, lengths, 2**20)
    assert_valid(packs, lengths, 2**20)
    assert len(packs) == -(-(2**13) // 3)


@given(instance=instances())
def test_next_fit_equals_its_twin(instance):
    lengths, capacity = instance
    assert run("next-fit", lengths, capacity) == naive.next_fit(lengths.tolist(), capacity)


@given(instance=instances())
def test_ffd_equals_its_twin(instance):
    lengths, capacity = instance
    assert run("ffd", lengths, capacity) == naive.first_fit_decreasing(lengths.tolist(), capacity)


@given(instance=instances())
def test_bfd_equals_its_twin(instance):
    lengths, capacity = instance
    assert run("bfd", lengths, capacity) == naive.best_fit_decreasing(lengths.tolist(), capacity)


@given(
    instance=instances(),
    seed=st.integers(0, 2**32),
    rounds=st.integers(1, 6),
    threshold=st.sampled_from([0.0, 0.5, 0.9, 1.0]),
)
def test_isf_equals_its_twin(instance, seed, rounds, threshold):
    lengths, capacity = instance
    options = IsfOptions(rounds=rounds, threshold=threshold)
    offsets, order = REGISTRY["isf"].pack(lengths, capacity, seed, options)
    expected = naive.iterative_sampling_filling(
        lengths.tolist(), capacity, int(np.ceil(threshold * capacity)), rounds, int(rng_state(seed)[0])
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


@pytest.mark.parametrize("name", NAMES)
def test_real_looking_lengths_are_packed_near_the_bound(name):
    rng = np.random.default_rng(0)
    lengths = np.clip(rng.lognormal(np.log(300), 1, 20_000), 1, 4096).astype(np.int32)
    packs = run(name, lengths, 4096)
    bound = packs_lower_bound(lengths, 4096)
    assert len(packs) >= bound
    limit = {"bfd": 1.001, "ffd": 1.001, "isf": 1.03, "next-fit": 1.2}[name]
    assert len(packs) <= limit * bound


def test_the_seed_decides_isf():
    lengths = np.arange(1, 200, dtype=np.int32)
    assert run("isf", lengths, 500, 1) == run("isf", lengths, 500, 1)
    assert run("isf", lengths, 500, 1) != run("isf", lengths, 500, 2)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("best", "unknown packing algorithm 'best'; known: isf, next-fit, ffd, bfd"),
        (
            "isf:round=3",
            "packing 'isf' has no option 'round=3'; known, with defaults: rounds=50, threshold=0.997",
        ),
        ("bfd:rounds=3", "packing 'bfd' has no option 'rounds=3'; known, with defaults: none"),
        ("isf:rounds=many", "option 'rounds' of packing 'isf' must be int, got 'many'"),
        ("isf:rounds=0", "option 'rounds' of packing 'isf' must be at least 1, got 0"),
        ("isf:threshold=2", "option 'threshold' of packing 'isf' must be in 0..1, got 2.0"),
    ],
)
def test_bad_packing_text_names_the_remedy(text, message):
    with pytest.raises(ValueError) as error:
        parse_packing(text, REGISTRY)
    assert str(error.value) == message


def test_options_are_read():
    _, options = parse_packing("isf:rounds=3,threshold=0.5", REGISTRY)
    assert options == IsfOptions(rounds=3, threshold=0.5)
