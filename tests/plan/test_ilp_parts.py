"""The parts of the cutting-stock program, each by itself: classes, slack, knapsacks, columns, packs near a pattern."""

from __future__ import annotations

import itertools
import time

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from packer_cli.plan.core.streams import rng_state
from packer_cli.plan.kernels.length_index import index_add, index_ceiling, index_floor, make_index
from packer_cli.plan.packing.ilp.columns import generate_columns, make_classes, start_patterns
from packer_cli.plan.packing.ilp.knapsack import best_patterns, patterns_from
from packer_cli.plan.packing.ilp.search import min_bin_slack
from packer_cli.plan.packing.ilp.stages import most_worth, pack_near, packs_with
from tests.plan.ilp import triples


def test_stones_are_told_from_sand_and_counted_in_grains():
    lengths = np.random.default_rng(0).integers(1, 131_073, 5000).astype(np.int32)
    assert make_classes(lengths, 131_072, 300) is None
    classes = make_classes(lengths, 131_072, 5000)
    assert classes.counts.sum() == 5000
    assert not classes.is_exact
    grain = 131_072 // classes.capacity
    assert (classes.values >= classes.down * grain).all()
    assert (classes.values <= classes.up * grain).all()
    few = np.append(np.arange(1, 8193), [50_000, 60_000]).astype(np.int32)
    assert make_classes(few, 131_072, 300).values.tolist() == [60_000, 50_000]


@given(capacity=st.integers(5, 60), data=st.data())
def test_each_pack_is_filled_as_well_as_it_can_be(capacity, data):
    lengths = data.draw(st.lists(st.integers(1, capacity), max_size=12))
    taken, offsets = min_bin_slack(np.bincount(np.array(lengths, dtype=int), minlength=capacity + 1), capacity, 10**6)
    left = sorted(lengths)
    for a, b in itertools.pairwise(offsets):
        pack = taken[a:b].tolist()
        longest, others = left[-1], left[:-1]
        fullest = max(
            sum(beside)
            for number in range(len(others) + 1)
            for beside in itertools.combinations(others, number)
            if sum(beside) <= capacity - longest
        )
        assert longest in pack
        assert sum(pack) == longest + fullest
        for length in pack:
            left.remove(length)
    assert left == []


values = st.lists(st.integers(1, 30), min_size=1, max_size=6, unique=True)


@given(values=values, room=st.integers(30, 60), data=st.data())
def test_the_unbounded_knapsack_equals_brute_force(values, room, data):
    sizes = np.sort(np.array(values, dtype=np.int64))
    worth = np.array(data.draw(st.lists(st.integers(0, 20), min_size=len(sizes), max_size=len(sizes))), dtype=np.int64)
    best = [0] * (room + 1)
    for left in range(room + 1):
        best[left] = max([0, *(best[left - s] + w for s, w in zip(sizes, worth, strict=True) if s <= left)])
    most = most_worth(sizes, worth, room)
    assert most.tolist() == best
    firsts = np.flatnonzero(worth)
    packs = packs_with(sizes, worth, most, room, firsts, room // int(sizes[0]))
    for first, pack in zip(firsts, packs, strict=True):
        pack = pack[pack >= 0]
        assert first in pack
        assert sizes[pack].sum() <= room
        assert worth[pack].sum() == best[room - sizes[first]] + worth[first]


@given(
    lengths=st.lists(st.integers(5, 40), min_size=3, max_size=60),
    patterns=st.lists(st.lists(st.integers(5, 20), min_size=1, max_size=4), min_size=1, max_size=4),
    reach=st.integers(0, 6),
    tolerance=st.integers(0, 5),
)
def test_packs_near_a_pattern_are_near_it(lengths, patterns, reach, tolerance):
    capacity = 50
    patterns = [sorted(pattern, reverse=True) for pattern in patterns if sum(pattern) <= capacity]
    if not patterns:
        return
    counts = np.bincount(lengths, minlength=capacity + 1)
    left = counts.copy()
    words, starts = make_index(capacity + 1)
    for length in np.flatnonzero(counts):
        index_add(words, starts, length)
    flat = np.concatenate(patterns).astype(np.int64)
    reaches = np.minimum(reach, flat - 1)
    ends = np.cumsum([0] + [len(pattern) for pattern in patterns])
    use = np.full(len(patterns), 2, dtype=np.int64)
    taken, offsets = np.empty(len(lengths), dtype=np.int32), np.zeros(len(lengths) + 1, dtype=np.int64)
    num_packs = pack_near(
        capacity, ends, flat, reaches, use, 1, tolerance, left, words, starts, taken, offsets, 0, rng_state(0)
    )
    packs = [taken[a:b] for a, b in itertools.pairwise(offsets[: num_packs + 1])]
    assert num_packs == (2 - use).sum()
    assert (np.bincount(taken[: offsets[num_packs]], minlength=capacity + 1) + left == counts).all()
    assert all(index_ceiling(words, starts, x) == x for x in np.flatnonzero(left))
    assert all(index_floor(words, starts, x) < x for x in np.flatnonzero(left[1:] == 0) + 1)
    made = [pattern for pattern, times in zip(patterns, 2 - use, strict=True) for _ in range(times)]
    for pack, pattern in zip(packs, made, strict=True):
        assert len(pack) == len(pattern)
        assert pack.sum() <= capacity
        # A single sample leaves what it leaves.
        if len(pattern) > 1:
            assert pack.sum() >= sum(pattern) - tolerance
        assert (np.abs(pack - pattern) <= reach).all()


def test_an_unfinished_run_proves_a_bound():
    """Farley's: after one round, with the first patterns only, and no less than half of the optimum."""
    lengths = triples(40, 1000, 5)
    classes = make_classes(lengths, 1000, 300)
    start = start_patterns(classes.up, classes.counts, classes.capacity)
    stopped = generate_columns(classes.up, classes.counts, classes.capacity, start, time.monotonic() + 0.01)
    if stopped is not None:  # A slow machine has no round in this time.
        assert stopped.bound <= 40
    full = generate_columns(classes.up, classes.counts, classes.capacity, start, time.monotonic() + 10)
    assert full.bound == 40


items = st.lists(st.tuples(st.integers(1, 12), st.integers(0, 20), st.integers(1, 4)), min_size=1, max_size=4)


@given(items=items, capacity=st.integers(1, 30), least=st.integers(1, 60))
def test_the_knapsack_equals_brute_force(items, capacity, least):
    sizes, values, limits = (np.array(column, dtype=np.int64) for column in zip(*items, strict=True))
    every = np.array(list(itertools.product(*(range(limit + 1) for limit in limits))))
    every = every[every @ sizes <= capacity]
    worth, patterns = best_patterns(sizes, values, limits, capacity)
    assert worth[0] == (every @ values).max()
    for k in range(len(worth)):
        if worth[k] >= 0:
            assert patterns[k] @ values == worth[k]
            assert patterns[k] @ sizes <= capacity
            assert (patterns[k] <= limits).all()
        if k and worth[k] >= 0:
            assert patterns[k][k - 1] >= 1
    found, is_complete = patterns_from(sizes, values, limits, capacity, least, 1000, 10**6)
    assert is_complete
    assert sorted(found.tolist()) == sorted(every[every @ values >= least].tolist())
    few, is_complete = patterns_from(sizes, values, limits, capacity, least, 1, 10**6)
    assert is_complete == (len(found) <= 1)
    assert len(few) == min(1, len(found))
