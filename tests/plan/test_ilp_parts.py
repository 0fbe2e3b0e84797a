"""The parts of the cutting-stock program, each by itself: classes, slack, knapsacks, columns."""

from __future__ import annotations

import itertools
import time

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from packer_cli.plan.packing.ilp.columns import best_patterns, generate_columns, make_classes
from packer_cli.plan.packing.ilp.cutting_stock import min_bin_slack
from tests.plan.ilp import array, triples


def test_stones_are_told_from_sand_and_counted_in_grains():
    lengths = np.random.default_rng(0).integers(1, 131_073, 5000).astype(np.int32)
    stones = np.sort(lengths[lengths > 8192])[::-1]
    for most in (300, 5000):
        classes = make_classes(lengths, 131_072, most)
        of_class = np.repeat(np.arange(len(classes.counts)), classes.counts)
        samples = stones if most == 300 else np.sort(lengths)[::-1]
        grain = 131_072 // classes.capacity
        assert len(classes.counts) <= most
        assert (samples >= classes.down[of_class] * grain).all()
        assert (samples <= classes.up[of_class] * grain).all()
    few = np.append(np.arange(1, 8193), [50_000, 60_000]).astype(np.int32)
    assert make_classes(few, 131_072, 300).counts.tolist() == [1, 1]


@given(capacity=st.integers(5, 60), data=st.data())
def test_each_pack_is_filled_as_well_as_it_can_be(capacity, data):
    lengths = data.draw(st.lists(st.integers(1, capacity), max_size=12))
    offsets, members = min_bin_slack(array(lengths), capacity)
    left = sorted(lengths)
    for a, b in itertools.pairwise(offsets):
        pack = array(lengths)[members[a:b]].tolist()
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


def test_an_unfinished_run_proves_a_bound():
    """Farley's: after one round, with the first patterns only, and no less than half of the optimum."""
    classes = make_classes(triples(40, 1000, 5), 1000, 300)
    program = classes.up, classes.counts, classes.capacity, np.empty((0, len(classes.up)), dtype=np.int64)
    stopped = generate_columns(*program, time.monotonic() + 0.01)
    if stopped is not None:  # A slow machine has no round in this time.
        assert stopped.bound <= 40
    assert generate_columns(*program, time.monotonic() + 10).bound == 40


items = st.lists(st.tuples(st.integers(1, 12), st.integers(0, 20), st.integers(0, 4)), min_size=1, max_size=4)


@given(items=items, capacity=st.integers(12, 30))
def test_the_knapsack_equals_brute_force(items, capacity):
    sizes, values, demands = (np.array(column, dtype=np.int64) for column in zip(*items, strict=True))
    limits = np.minimum(demands, capacity // sizes)
    every = np.array(list(itertools.product(*(range(limit + 1) for limit in limits))))
    every = every[every @ sizes <= capacity]
    worth, patterns = best_patterns(sizes, values, limits, capacity)
    assert worth[0] == (every @ values).max()
    assert (worth == patterns @ values).all()
    assert (patterns @ sizes <= capacity).all()
    assert (patterns <= limits).all()
    assert (np.diag(patterns[1:]) >= np.minimum(1, limits)).all()
