"""The integer program of the least greatest work: equality with brute force, and its time limit."""

from __future__ import annotations

import itertools
import time

import numpy as np
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from packer_cli.plan.strategies.wlb.packers import min_max_work
from tests.plan.ilp import array


def by_brute_force(lengths, num_packs, capacity):
    """Exact, by trying everything: (the least greatest work, the rows that have it); Nones where nothing fits."""
    best = start = None
    for rows in itertools.product(range(num_packs), repeat=len(lengths)):
        tokens, work = [0] * num_packs, [0] * num_packs
        for length, row in zip(lengths, rows, strict=True):
            tokens[row] += length
            work[row] += length * length
        if max(tokens) <= capacity and (best is None or max(work) < best):
            best, start = max(work), rows
    return best, start


@given(
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=7),
    num_packs=st.integers(1, 3),
    extra=st.integers(0, 40),
    unit=st.sampled_from([1, 3000]),
)
@settings(max_examples=50)
def test_least_greatest_work_equals_brute_force(lengths, num_packs, extra, unit):
    lengths = sorted((length * unit for length in lengths), reverse=True)
    capacity = max(*lengths, sum(lengths) // num_packs, 1) + extra * unit
    expected, start = by_brute_force(lengths, num_packs, capacity)
    assume(start is not None)
    pack_of = min_max_work(array(lengths), np.array(start), num_packs, capacity)
    rows = [np.flatnonzero(pack_of == j) for j in range(num_packs)]
    assert max(int(array(lengths)[row].sum()) for row in rows) <= capacity
    work = array(lengths).astype(np.int64) ** 2
    # A solver proves to a millionth of the longest sample's work.
    assert 0 <= max(int(work[row].sum()) for row in rows) - expected <= 4e-6 * work.max()


def test_least_greatest_work_of_no_samples():
    assert min_max_work(array([]), array([]), 3, 10).tolist() == []


def test_a_window_has_an_answer_at_the_time_limit():
    rng = np.random.default_rng(0)
    lengths = -np.sort(-np.clip(rng.lognormal(np.log(3000), 1.2, 100), 1, 131_072).astype(np.int32))
    in_turn = np.arange(100) % 4
    assert np.bincount(in_turn, weights=lengths).max() <= 200_000
    began = time.monotonic()
    pack_of = min_max_work(lengths, in_turn, 4, 200_000, 0.5)
    assert time.monotonic() - began < 5
    work = np.bincount(pack_of, weights=lengths.astype(float) ** 2)
    assert work.max() <= 1.02 * max(work.mean(), float(lengths.max()) ** 2)
    assert np.bincount(pack_of, weights=lengths).max() <= 200_000
