"""The smaller kernels against their twins."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from packer_cli.plan.balance import sort_by_work, spread
from packer_cli.plan.bounds import packs_lower_bound
from packer_cli.plan.cost import pack_tokens_and_work, segment_sums
from packer_cli.plan.fill import greedy_fill
from packer_cli.plan.length_index import index_add, index_ceiling, index_floor, index_remove, make_index
from packer_cli.plan.random import next_below, next_uint64, rng_state, shuffle
from packer_cli.plan.schedule import _steps
from packer_cli.plan.sorting import argsort_descending
from tests import naive


@given(state=st.integers(0, 2**64 - 1), bound=st.integers(1, 2**32 - 1))
def test_random_numbers_equal_the_twin(state, bound):
    twin = naive.SplitMix64(state)
    array = np.array([state], dtype=np.uint64)
    assert [int(next_uint64(array)) for _ in range(3)] == [twin.next() for _ in range(3)]
    assert next_below(array, bound) == twin.below(bound)
    values = np.arange(20)
    shuffle(values, array)
    expected = list(range(20))
    twin.shuffle(expected)
    assert values.tolist() == expected


def test_streams_of_a_seed_differ():
    states = {int(rng_state(seed, stream)[0]) for seed in range(20) for stream in range(20)}
    assert len(states) == 400


@given(
    size=st.sampled_from([1, 63, 64, 65, 4096, 5000, 300_000]),
    data=st.data(),
)
def test_the_index_finds_neighbours(size, data):
    words, starts = make_index(size)
    members: set[int] = set()
    for _ in range(data.draw(st.integers(0, 30))):
        value = data.draw(st.integers(0, size - 1))
        if value in members and data.draw(st.booleans()):
            members.discard(value)
            index_remove(words, starts, value)
        else:
            members.add(value)
            index_add(words, starts, value)
        query = data.draw(st.integers(0, size - 1))
        assert index_ceiling(words, starts, query) == min((m for m in members if m >= query), default=-1)
        assert index_floor(words, starts, query) == max((m for m in members if m <= query), default=-1)
        assert index_floor(words, starts, size + 1000) == max(members, default=-1)


@given(lengths=st.lists(st.integers(1, 50), max_size=80))
def test_sorting_is_stable_and_descending(lengths):
    order = argsort_descending(np.array(lengths, dtype=np.int32), 50)
    assert order.tolist() == naive.descending(lengths)


@given(
    room=st.lists(st.integers(0, 300), max_size=12),
    lengths=st.lists(st.integers(1, 100), max_size=40),
)
def test_greedy_fill_equals_algorithm_6(room, lengths):
    offsets, chosen = greedy_fill(np.array(room, dtype=np.int64), np.array(lengths, dtype=np.int32), 100)
    assert naive.packs_of(offsets, chosen) == naive.greedy_fill(room, lengths)


@given(
    lengths=st.lists(st.integers(1, 60), min_size=1, max_size=40),
    capacity=st.integers(60, 300),
    num_rows=st.integers(1, 9),
)
def test_spread_equals_its_twin(lengths, capacity, num_rows):
    order = naive.descending(lengths)
    row_of, fits = spread(np.array(lengths, dtype=np.int32), np.array(order), capacity, num_rows)
    expected = naive.spread(lengths, order, capacity, num_rows)
    assert fits == (expected is not None)
    if expected is not None:
        assert row_of.tolist() == expected


@given(capacity=st.integers(1, 60), data=st.data())
def test_the_lower_bound_is_l2_and_below_the_optimum(capacity, data):
    lengths = data.draw(st.lists(st.integers(1, capacity), max_size=9))
    bound = packs_lower_bound(np.array(lengths, dtype=np.int32), capacity)
    assert bound == naive.l2_bound(lengths, capacity)
    assert -(-sum(lengths) // capacity) <= bound <= naive.fewest_packs(lengths, capacity)


def test_the_lower_bound_sees_more_than_the_sum():
    assert packs_lower_bound(np.array([6, 6, 6, 6], dtype=np.int32), 10) == 4


@given(packs=st.lists(st.lists(st.integers(1, 2**20), min_size=1, max_size=6), max_size=10))
def test_work_is_the_sum_of_squares(packs):
    lengths = np.array([length for pack in packs for length in pack], dtype=np.int32)
    offsets = np.concatenate([[0], np.cumsum([len(pack) for pack in packs])]).astype(np.int64)
    tokens, work = pack_tokens_and_work(offsets, np.arange(len(lengths)), lengths)
    assert tokens.tolist() == [sum(pack) for pack in packs]
    assert work.tolist() == [sum(length**2 for length in pack) for pack in packs]
    assert segment_sums(lengths, offsets).tolist() == tokens.tolist()


@given(work=st.lists(st.integers(0, 5), max_size=30), seed=st.integers(0, 100))
def test_balance_sorts_by_falling_work(work, seed):
    values = np.array(work, dtype=np.int64)
    order = sort_by_work(values, rng_state(seed))
    assert sorted(order.tolist()) == list(range(len(work)))
    assert values[order].tolist() == sorted(work, reverse=True)


def test_equal_packs_are_in_seeded_order():
    work = np.zeros(50, dtype=np.int64)
    assert sort_by_work(work, rng_state(0)).tolist() != sort_by_work(work, rng_state(1)).tolist()


@given(tokens=st.lists(st.integers(1, 100), max_size=40), target=st.integers(0, 400))
def test_steps_equal_their_twin(tokens, target):
    assert _steps(np.array(tokens, dtype=np.int64), target).tolist() == naive.steps_of(tokens, target)
