"""The smaller kernels against their twins."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packer_cli.plan.core import csr
from packer_cli.plan.core.bounds import packs_lower_bound
from packer_cli.plan.core.cost import segment_sums
from packer_cli.plan.core.csr import argsort_descending, count_lengths, pack_tokens_and_work
from packer_cli.plan.core.schedule import _steps
from packer_cli.plan.core.streams import next_below, next_uint64, rng_state, shuffle, shuffle_buckets
from packer_cli.plan.kernels.balance import BalanceRule, order_packs, spread
from packer_cli.plan.kernels.fill import balanced_fill, greedy_fill, longest_fill, median_length, pick_samples
from packer_cli.plan.kernels.length_index import (
    full_index,
    index_add,
    index_ceiling,
    index_floor,
    index_remove,
    make_index,
)
from tests import naive


@given(state=st.integers(0, 2**64 - 1), bound=st.integers(1, 2**32 - 1))
def test_random_numbers_equal_the_twin(state, bound):
    twin = naive.SplitMix64(state)
    array = np.array([state], dtype=np.uint64)
    assert [int(next_uint64(array)) for _ in range(3)] == [twin.next() for _ in range(3)]
    assert next_below(array, bound) == twin.below(bound)
    values = np.arange(20, dtype=np.int32)
    shuffle(values, array)
    expected = list(range(20))
    twin.shuffle(expected)
    assert values.tolist() == expected


@given(seed=st.integers(0, 2**32), num=st.integers(0, 300), bits=st.integers(1, 5), is_implied=st.booleans())
def test_shuffle_in_buckets_equals_its_twin(seed, num, bits, is_implied):
    state = rng_state(seed)
    expected, twin = list(range(num)), naive.SplitMix64(int(state[0]))
    values, shuffled = np.arange(0 if is_implied else num, dtype=np.int32), np.empty(num, dtype=np.int32)
    shuffle_buckets(values, state, shuffled, bits)
    twin.shuffle_buckets(expected, bits)
    assert shuffled.tolist() == expected
    assert int(state[0]) == twin.state


def test_shuffle_in_buckets_is_uniform():
    """Every value comes to every place about as often."""
    state, num, rounds = rng_state(0), 8, 8000
    counts = np.zeros((num, num))
    for _ in range(rounds):
        values = np.empty(num, dtype=np.int32)
        shuffle_buckets(np.arange(num, dtype=np.int32), state, values, 2)
        counts[values, np.arange(num)] += 1
    assert abs(counts / rounds - 1 / num).max() < 5 * np.sqrt(1 / num / rounds)


def test_streams_of_a_seed_differ():
    states = {int(rng_state(seed, stream)[0]) for seed in range(20) for stream in range(20)}
    assert len(states) == 400


@given(
    size=st.sampled_from([1, 63, 64, 65, 4096, 5000, 300_000]),
    data=st.data(),
)
def test_the_index_finds_neighbours(size, data):
    index = make_index(size)
    members: set[int] = set()
    for _ in range(data.draw(st.integers(0, 30))):
        value = data.draw(st.integers(0, size - 1))
        if value in members and data.draw(st.booleans()):
            members.discard(value)
            index_remove(index, value)
        else:
            members.add(value)
            index_add(index, value)
        query = data.draw(st.integers(0, size - 1))
        assert index_ceiling(index, query) == min((m for m in members if m >= query), default=-1)
        assert index_floor(index, query) == max((m for m in members if m <= query), default=-1)
        assert index_floor(index, size + 1000) == max(members, default=-1)


@given(size=st.sampled_from([1, 63, 64, 65, 4097, 270_000]), data=st.data())
def test_a_full_index_is_one_that_was_filled(size, data):
    members = data.draw(st.lists(st.integers(0, size - 1)))
    index = make_index(size)
    for value in members:
        index_add(index, value)
    is_member = np.zeros(size, dtype=np.bool_)
    is_member[members] = True
    for own, expected in zip(full_index(is_member), index, strict=True):
        assert np.array_equal(own, expected)


@given(lengths=st.lists(st.integers(1, 50), max_size=80), data=st.data())
def test_lengths_are_counted_block_by_block(lengths, data):
    chosen = data.draw(st.lists(st.booleans(), min_size=len(lengths), max_size=len(lengths)))
    array, mask = np.array(lengths, dtype=np.int32), np.array(chosen, dtype=np.bool_)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(csr, "_SORT_BLOCK", data.draw(st.integers(1, 100)))
        counts = count_lengths(array), count_lengths(array, mask)
    for count, of in zip(counts, (lengths, [x for x, c in zip(lengths, chosen, strict=True) if c]), strict=True):
        assert count.tolist() == [of.count(length) for length in range(max(of, default=0) + 1)]


def test_a_long_histogram_is_not_added_up_for_every_block(monkeypatch):
    blocks = []
    count = np.bincount
    monkeypatch.setattr(csr, "_SORT_BLOCK", 2)
    monkeypatch.setattr(np, "bincount", lambda block, *args, **options: blocks.append(block) or count(block))
    assert count_lengths(np.arange(1, 101, dtype=np.int32)).tolist() == [0, *[1] * 100]
    assert len(blocks) <= 7  # Each is as long as all before it.


@given(lengths=st.lists(st.integers(1, 50), max_size=80))
def test_sorting_is_stable_and_descending(lengths):
    order = argsort_descending(np.array(lengths, dtype=np.int32))
    assert order.tolist() == naive.descending(lengths)


def candidates_among(lengths, others=(7, 100)):
    """The lengths as candidates between two that are none."""
    is_left = np.array([False, *[True] * len(lengths), False])
    return np.array([others[0], *lengths, others[1]], dtype=np.int32), is_left, int(max([100, *lengths]))


def counts_of(candidates):
    lengths, is_left, _ = candidates
    return count_lengths(lengths, is_left)


def by_pack(pack_of, chosen, num_packs):
    """The samples of each pack, in order."""
    return [chosen[pack_of == k].tolist() for k in range(num_packs)]


def left_of(candidates):
    """The place among the candidates of each piece."""
    return np.cumsum(candidates[1]) - 1


@given(
    room=st.lists(st.integers(0, 300), max_size=12),
    lengths=st.lists(st.integers(1, 100), max_size=40),
)
def test_longest_fill_equals_its_twin(room, lengths):
    candidates = candidates_among(lengths)
    pack_of, chosen = longest_fill(np.array(room, dtype=np.int64), counts_of(candidates))
    chosen = left_of(candidates)[pick_samples(chosen, *candidates)]
    assert by_pack(pack_of, chosen, len(room)) == naive.longest_fill(room, lengths)


@given(
    room=st.lists(st.integers(0, 2000), max_size=12),
    lengths=st.lists(st.integers(1, 100), min_size=1, max_size=40),
    copies=st.integers(1, 8),
    capacities=st.lists(st.integers(1, 110), min_size=1, max_size=4, unique=True).map(sorted),
    taken=st.sets(st.integers(0, 39)),
)
def test_greedy_fill_equals_algorithm_6(room, lengths, copies, capacities, taken):
    lengths = lengths * copies  # More than a block.
    is_left = np.array([i not in taken for i in range(len(lengths))])
    candidates = np.flatnonzero(is_left)
    expected = naive.greedy_fill(room, [lengths[i] for i in candidates], capacities)
    was_left = is_left.copy()
    pack_of, chosen = greedy_fill(
        np.array(room, dtype=np.int64), np.array(lengths, dtype=np.int32), is_left, capacities
    )
    assert by_pack(pack_of, chosen, len(room)) == [candidates[added].tolist() for added in expected]
    assert np.array_equal(np.flatnonzero(was_left & ~is_left), np.sort(chosen))


def test_picked_samples_keep_no_other_memory():
    candidates = candidates_among([3, 5, 5])
    assert pick_samples(np.array([5, 3, 5], dtype=np.int32), *candidates).base is None


@given(
    packs=st.lists(st.tuples(st.integers(0, 300), st.integers(0, 90_000)), max_size=12),
    lengths=st.lists(st.integers(1, 100), min_size=1, max_size=60),
    num_ranks=st.integers(1, 5),
    typical=st.integers(1, 60),
)
def test_balanced_fill_equals_its_twin(packs, lengths, num_ranks, typical):
    room, work = [pack[0] for pack in packs], [pack[1] for pack in packs]
    order = sorted(range(len(packs)), key=lambda k: -work[k])
    arrays = np.array(room, dtype=np.int64), np.array(work, dtype=np.int64), np.array(order, dtype=np.int32)
    candidates = candidates_among(lengths)
    pack_of, chosen = balanced_fill(*arrays, num_ranks, counts_of(candidates), typical)
    chosen = left_of(candidates)[pick_samples(chosen, *candidates)]
    expected = naive.balanced_fill(room, work, order, num_ranks, lengths, typical)
    assert list(zip(pack_of.tolist(), chosen.tolist(), strict=True)) == expected


@given(lengths=st.lists(st.integers(1, 100), min_size=1, max_size=60))
def test_the_median_of_counts_is_the_median(lengths):
    assert median_length(counts_of(candidates_among(lengths))) == int(np.median(lengths))


def test_balanced_fill_evens_out_what_the_longest_do_not():
    rng = np.random.default_rng(0)
    own = rng.integers(4000, 9000, 40)
    short = rng.integers(20, 2000, 4000).astype(np.int32)
    room, work = 10_000 - own, own.astype(np.int64) ** 2
    order = np.argsort(-work).astype(np.int32)

    count = count_lengths(short)

    def unevenness(pack_of, chosen):
        assert (np.bincount(chosen, minlength=len(count)) <= count).all()
        done = work + np.bincount(pack_of, weights=chosen.astype(float) ** 2, minlength=40).astype(np.int64)
        assert (np.bincount(pack_of, weights=chosen, minlength=40) <= room).all()
        rows = done[order].reshape(10, 4)
        return (1 - rows.mean(axis=1) / rows.max(axis=1)).mean()

    pack_of, chosen = balanced_fill(room, work, order, 4, count, 500)
    assert unevenness(pack_of, chosen) < 0.3 * unevenness(*longest_fill(room, count))


@given(
    lengths=st.lists(st.integers(1, 60), min_size=1, max_size=40),
    capacity=st.integers(60, 300),
    num_rows=st.integers(1, 9),
    linear=st.sampled_from([0, 1, 50, 2**31 - 2]),
    evens_tokens=st.booleans(),
    has_own_work=st.booleans(),
    data=st.data(),
)
def test_spread_equals_its_twin(lengths, capacity, num_rows, linear, evens_tokens, has_own_work, data):
    order = naive.descending(lengths)
    length, falling = np.array([lengths, order], dtype=np.int32)
    works = st.lists(st.integers(1, 99), min_size=len(lengths), max_size=len(lengths))
    work = data.draw(works) if has_own_work else [length * (length + linear) for length in lengths]
    row_of = spread(length, np.array(work), falling, capacity, num_rows, evens_tokens=evens_tokens)
    assert row_of.tolist() == naive.spread(lengths, work, order, capacity, num_rows, evens_tokens=evens_tokens)


@given(capacity=st.integers(1, 60), data=st.data())
def test_the_lower_bound_is_l2_and_below_the_optimum(capacity, data):
    lengths = data.draw(st.lists(st.integers(1, capacity), max_size=9))
    bound = packs_lower_bound(np.array(lengths, dtype=np.int32), capacity)
    assert bound == naive.l2_bound(lengths, capacity)
    assert -(-sum(lengths) // capacity) <= bound <= naive.fewest_packs(lengths, capacity)


def test_the_lower_bound_sees_more_than_the_sum():
    assert packs_lower_bound(np.array([6, 6, 6, 6], dtype=np.int32), 10) == 4


def test_the_lower_bound_takes_no_memory_for_lengths_that_are_not_there():
    lengths = np.arange(1, 1001, dtype=np.int32)
    tracemalloc.start()
    assert packs_lower_bound(lengths, 2**24) == 1
    assert tracemalloc.get_traced_memory()[1] < 2**20
    tracemalloc.stop()


@given(
    packs=st.lists(st.lists(st.integers(1, 2**20), min_size=1, max_size=6), max_size=10),
    linear=st.sampled_from([0, 1, 24_576, 2**31 - 2]),
)
def test_work_is_the_sum_of_squares_and_a_linear_term(packs, linear):
    lengths = np.array([length for pack in packs for length in pack], dtype=np.int32)
    offsets = np.concatenate([[0], np.cumsum([len(pack) for pack in packs])]).astype(np.int64)
    tokens, work = pack_tokens_and_work(offsets, np.arange(len(lengths), dtype=np.int32), lengths, linear)
    assert tokens.tolist() == [sum(pack) for pack in packs]
    assert work.tolist() == [sum(length * (length + linear) for length in pack) for pack in packs]
    assert segment_sums(lengths, offsets).tolist() == tokens.tolist()


@given(work=st.lists(st.integers(0, 5), max_size=30), seed=st.integers(0, 100))
def test_balance_sorts_by_falling_work(work, seed):
    values = np.array(work, dtype=np.int64)
    order = order_packs(values, 4, BalanceRule(), rng_state(seed))
    assert sorted(order.tolist()) == list(range(len(work)))
    assert values[order].tolist() == sorted(work, reverse=True)


def test_equal_packs_are_in_seeded_order():
    work = np.zeros(50, dtype=np.int64)
    orders = [order_packs(work, 4, BalanceRule(), rng_state(seed)).tolist() for seed in range(2)]
    assert orders[0] != orders[1]


@given(tokens=st.lists(st.integers(1, 100), max_size=40), target=st.integers(0, 400))
def test_steps_equal_their_twin(tokens, target):
    assert _steps(np.array(tokens, dtype=np.int64), target).tolist() == naive.steps_of(tokens, target)
