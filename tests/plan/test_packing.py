"""What every packing algorithm must hold: whole and valid packs, edges, no overflow, near the bound, the seed."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packer_cli.plan.core.bounds import packs_lower_bound
from packer_cli.plan.core.types import Pieces
from packer_cli.plan.packing import REGISTRY
from tests.plan.packing import assert_valid, instances, run

NAMES = list(REGISTRY)
SEEDED = {"bfs", "ffs", "isf", "padded", "random"}
PACKING_NAMES = [name for name in NAMES if name not in ("none", "padded")]


@pytest.mark.parametrize("name", NAMES)
@given(instance=instances(), seed=st.integers(0, 2**64))
def test_every_sample_is_in_exactly_one_pack(name, instance, seed):
    lengths, capacity = instance
    assert_valid(run(name, lengths, capacity, seed), lengths, capacity)


@pytest.mark.parametrize("name", PACKING_NAMES)
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


@pytest.mark.parametrize("name", PACKING_NAMES)
def test_totals_over_2_to_31_do_not_overflow(name):
    lengths = np.full(2**13, 2**18 + 1, dtype=np.int32)
    packs = run(name, lengths, 2**20)
    assert_valid(packs, lengths, 2**20)
    assert len(packs) == -(-(2**13) // 3)


LIMITS = {
    "isf": 1.03,
    "next-fit": 1.2,
    "ffd": 1.001,
    "bfd": 1.001,
    "ffs": 1.005,
    "bfs": 1.005,
    "spfhp": 1.001,
    "ilp": 1.001,
    "wrap": 1.2,  # of whole samples, as next-fit; it is full where it may cut
    "bfd-split": 1.001,
    "decompose": 1.001,  # of whole samples, as bfd
    "random": 1.2,
    "sorted": 1.2,
}


@pytest.mark.parametrize("name", PACKING_NAMES)
def test_real_looking_lengths_are_packed_near_the_bound(name):
    rng = np.random.default_rng(0)
    lengths = np.clip(rng.lognormal(np.log(300), 1, 20_000), 1, 4096).astype(np.int32)
    packs = run(name, lengths, 4096)
    bound = packs_lower_bound(lengths, 4096)
    assert len(packs) >= bound
    limit = LIMITS[name]
    assert_valid(packs, lengths, 4096)
    assert len(packs) <= limit * bound


@pytest.mark.parametrize("name", NAMES)
def test_the_seed_decides_what_is_random(name):
    lengths = np.arange(1, 200, dtype=np.int32)
    assert run(name, lengths, 500, 1) == run(name, lengths, 500, 1)
    if name == "wrap":  # it draws when it cuts
        cuts = [REGISTRY[name].cut(whole(lengths), 500, seed).sample.tolist() for seed in (1, 2)]
        assert cuts[0] != cuts[1]
    else:
        assert (run(name, lengths, 500, 1) != run(name, lengths, 500, 2)) == (name in SEEDED)


def whole(lengths):
    return Pieces(samples=None, start=np.zeros(len(lengths), dtype=np.int32), length=lengths)
