"""Instances of packing, and a run of an algorithm over one, for the tests of every algorithm."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from packer_cli.plan.packing import REGISTRY, parse_packing
from tests import naive


@st.composite
def instances(draw, max_size=60):
    capacity = draw(st.integers(1, 200))
    longest = draw(st.sampled_from([capacity, -(-capacity // 8)]))
    lengths = draw(st.lists(st.integers(1, longest), max_size=max_size))
    return np.array(lengths, dtype=np.int32), capacity


def run(name, lengths, capacity, seed=0):
    algorithm, options = parse_packing(name, REGISTRY)
    offsets, order = algorithm.pack(lengths, capacity, seed, options)
    return naive.packs_of(offsets, order)


def assert_valid(packs, lengths, capacity):
    assert sorted(i for pack in packs for i in pack) == list(range(len(lengths)))
    assert all(pack for pack in packs)
    assert all(sum(int(lengths[i]) for i in pack) <= capacity for pack in packs)
