"""Packings of pieces whose packs have several limits, beside their twins."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packer_cli.plan.core.streams import rng_state
from packer_cli.plan.packing import REGISTRY, parse_packing
from tests import naive
from tests.naive import packing as twins

LIMITS = (64, 64, 128)  # Shares of powers of two are exact, so that no two rooms differ by rounding alone.
needs_of_pieces = st.lists(st.tuples(st.integers(1, 64), st.integers(0, 64), st.integers(1, 128)), max_size=30)


def run(name, needs, seed=0):
    algorithm, options = parse_packing(name, REGISTRY)
    columns = np.array(needs, dtype=np.int64).reshape(-1, 3).T.copy()
    return naive.packs_of(*algorithm.pack_needs(columns, np.array(LIMITS), seed, options))


@pytest.mark.parametrize("name", ["ffd", "bfd", "ffs", "bfs"])
@given(needs=needs_of_pieces, seed=st.integers(0, 2**32))
def test_fits_equal_their_twin(name, needs, seed):
    order = sorted(range(len(needs)), key=lambda i: -max(n / most for n, most in zip(needs[i], LIMITS, strict=True)))
    if name in ("ffs", "bfs"):
        order = naive.shuffled(len(needs), int(rng_state(seed)[0]))
    assert run(name, needs, seed) == twins.fit_needs(needs, LIMITS, order, is_best=name[0] == "b")


@given(
    needs=needs_of_pieces,
    seed=st.integers(0, 2**32),
    rounds=st.integers(1, 6),
    threshold=st.sampled_from([0.5, 0.9, 1.0]),
)
def test_isf_equals_its_twin(needs, seed, rounds, threshold):
    least = [int(np.ceil(threshold * most)) for most in LIMITS]
    expected = twins.isf_of_needs(needs, LIMITS, least, rounds, int(rng_state(seed)[0]))
    assert run(f"isf:rounds={rounds},threshold={threshold}", needs, seed) == expected
