"""FlexSP's kernels against their twins."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packer_cli.plan.core.cost import GroupCosts
from packer_cli.plan.kernels.timed_dealing import Dealt, deal, even_out
from packer_cli.plan.strategies.flexsp.batches import cut_evenly, make_buckets
from packer_cli.plan.strategies.flexsp.micro_batch import least_seconds
from packer_cli.plan.strategies.flexsp.packing import cheapest_degrees, pack_by_degree
from packer_cli.plan.strategies.flexsp.plan import form_iterations, pack_seconds
from tests.naive import flexsp as naive
from tests.naive import packs_of
from tests.plan.strategies.flexsp import any_costs, both

LENGTHS = st.lists(st.integers(1, 40), min_size=1, max_size=10)


def test_costs_are_those_of_the_released_fit():
    """FlexSP's 7B model on A100s (ms): a sequence of 32,768 tokens at degree 8 computes 2,071.1 and sends 67.7."""
    num_bytes, bandwidth = 16 * 32 * 4096, 121 * 2**20
    computing, sending = 0.1839576 / 8, num_bytes / (8 * bandwidth)
    rates = {"gpus": [8], "quadratic": [5.128e-6 / 8], "constant": [629.3563], "capacity": [2**18]}
    for linear, milliseconds in ((computing, 2071.1), (computing + sending, 2071.1 + 67.7)):
        costs = GroupCosts(**rates, linear=[linear])
        assert costs.seconds(0, 32_768**2, 32_768) == pytest.approx(milliseconds, abs=0.1)


@given(costs=any_costs(), lengths=LENGTHS, limit=st.sampled_from([math.inf, 100, 1000, 5000]))
def test_the_cheapest_degree_equals_its_twin(costs, lengths, limit):
    costs, twin = both(costs)
    kinds, seconds = cheapest_degrees(np.array(lengths), costs, limit)
    expected = [twin.gpu_seconds(length, limit) for length in lengths]
    assert seconds.tolist() == pytest.approx([entry[1] for entry in expected])
    assert kinds.tolist() == [entry[0] for entry in expected]


@given(lengths=st.lists(st.integers(1, 30), max_size=14), num_buckets=st.integers(1, 6))
def test_buckets_round_as_little_as_the_printed_recurrence(lengths, num_buckets):
    found = make_buckets(np.array(lengths, dtype=np.int32), num_buckets)
    bucket = np.searchsorted(-found.longest, -np.array(lengths, dtype=np.int64), side="right") - 1
    assert found.samples.tolist() == np.bincount(bucket, minlength=len(found.longest)).tolist()
    assert sum(found.longest[bucket].tolist()) - sum(lengths) == naive.least_bucket_error(lengths, num_buckets)
    assert len(found.longest) <= num_buckets


@given(values=st.lists(st.integers(1, 20), min_size=1, max_size=10), num_parts=st.integers(1, 5))
def test_micro_batches_are_cut_as_evenly_as_the_printed_recurrence(values, num_parts):
    parts = np.split(np.array(values), cut_evenly(np.array(values), num_parts))
    assert len(parts) <= num_parts
    assert all(len(part) for part in parts)
    assert max(part.sum() for part in parts) == naive.least_greatest_sum(values, num_parts)


@given(costs=any_costs(), lengths=LENGTHS, num_gpus=st.integers(1, 20))
def test_the_bound_of_a_micro_batch_equals_its_twin(costs, lengths, num_gpus):
    costs, twin = both(costs)
    found = least_seconds(np.array(lengths), costs.arrays, num_gpus)
    assert found == pytest.approx(naive.least_seconds(lengths, twin, num_gpus))


@given(costs=any_costs(), lengths=LENGTHS, data=st.data(), limit=st.sampled_from([math.inf, 2000.0]))
def test_dealing_equals_its_twins(costs, lengths, data, limit):
    costs, twin = both(costs)
    kinds = data.draw(st.lists(st.integers(0, len(costs) - 1), min_size=1, max_size=4))
    falling = sorted(lengths, reverse=True)

    def run(limit, by_room):
        group_of = np.zeros(len(falling), dtype=np.int64)
        tokens, work = np.full((2, len(kinds)), 99, dtype=np.int64)
        dealt = Dealt(group_of, tokens, work)
        seconds = deal(np.array(falling), np.array(kinds), costs.arrays, limit, by_room, dealt)
        if seconds == math.inf:
            return None
        for sums, power in ((tokens, 1), (work, 2)):
            expected = np.bincount(group_of, weights=np.array(falling) ** power, minlength=len(kinds))
            assert sums.tolist() == expected.tolist()
        return group_of.tolist(), seconds

    assert run(limit, False) == naive.deal(falling, kinds, twin, limit)
    assert run(math.inf, True) == naive.deal_by_room(falling, kinds, twin)


@given(costs=any_costs(), lengths=LENGTHS, data=st.data())
def test_evening_out_ends_where_no_division_of_two_groups_helps(costs, lengths, data):
    costs, twin = both(costs)
    kinds = data.draw(st.lists(st.integers(0, len(costs) - 1), min_size=1, max_size=4))
    falling = sorted(lengths, reverse=True)
    dealt = naive.deal(falling, kinds, twin)
    if dealt is None:
        return
    group_of = np.array(dealt[0])
    tokens, work = (
        np.bincount(group_of, weights=np.array(falling) ** power, minlength=len(kinds)).astype(np.int64)
        for power in (1, 2)
    )
    arrays = np.array(falling), np.array(kinds), costs.arrays
    before, _ = naive.best_division(falling, kinds, twin, dealt[0])
    for most_steps in (1, 100):
        seconds = even_out(*arrays, most_steps, 0.0, Dealt(group_of, tokens, work))
        groups = [
            [s for s, own in zip(falling, group_of.tolist(), strict=True) if own == p] for p in range(len(kinds))
        ]
        assert all(map(twin.fits, kinds, groups))
        assert seconds == max(map(twin.seconds, kinds, groups))
        assert seconds <= before
    before, best = naive.best_division(falling, kinds, twin, group_of.tolist())
    assert best >= before * (1 - 1e-8)


@given(costs=any_costs(), data=st.data(), limit=st.sampled_from([math.inf, 3000.0, 20_000.0]))
def test_packs_by_degree_equal_the_twin(costs, data, limit):
    costs, twin = both(costs)
    lengths = data.draw(st.lists(st.integers(1, int(costs.capacity[-1])), max_size=25))
    found = pack_by_degree(np.array(lengths, dtype=np.int32), costs, 0, limit)
    packs = packs_of(found.offsets, found.samples)
    assert sorted(sample for pack in packs for sample in pack) == list(range(len(lengths)))
    own = {length: twin.gpu_seconds(length, limit) for length in lengths}
    left = list(lengths)
    expected = []
    kinds = sorted({kind for kind, _ in own.values()}, reverse=True)
    for kind in kinds[:-1]:
        quadratic, linear, _ = twin.rates[kind]
        fillers = [
            s for s in left if own[s][0] < kind and twin.degrees[kind] * (quadratic * s + linear) * s < own[s][1]
        ]
        new = naive.pack_longest_first([s for s in left if own[s][0] == kind], fillers, kind, twin, limit)
        expected += [(kind, pack) for pack in new]
        for pack in new:
            for s in pack:
                left.remove(s)
    named = [
        (kind, [lengths[sample] for sample in pack]) for kind, pack in zip(found.kinds.tolist(), packs, strict=True)
    ]
    assert named[: len(expected)] == expected
    # The others share packs of the lowest degree, of which no two could be one.
    rest = named[len(expected) :]
    assert sorted(s for _, pack in rest for s in pack) == sorted(left)
    assert all(kind == kinds[-1] and twin.fits(kind, pack) for kind, pack in rest)
    tokens = sorted(sum(pack) for _, pack in rest)
    assert len(tokens) < 2 or tokens[0] + tokens[1] > twin.capacity[kinds[-1]]


@given(costs=any_costs(), data=st.data())
def test_iterations_are_formed_like_the_twins(costs, data):
    num_gpus = data.draw(st.integers(int(costs.gpus[-1]), 12))
    kinds = data.draw(st.lists(st.integers(0, len(costs) - 1), min_size=1, max_size=20))
    lengths = np.array(data.draw(st.permutations(range(1, len(kinds) + 1))), dtype=np.int32)
    packs = np.arange(len(kinds) + 1), np.arange(len(kinds))
    seconds = pack_seconds(*packs, np.array(kinds), lengths, costs)
    order, bounds = form_iterations(np.array(kinds), seconds, costs.gpus, num_gpus)
    iterations = [order[a:b].tolist() for a, b in pairwise(bounds)]
    expected = naive.form_iterations(kinds, seconds.tolist(), costs.gpus.tolist(), num_gpus)
    assert list(map(sorted, iterations)) == list(map(sorted, expected))
    for iteration in iterations:
        own = [kinds[pack] for pack in iteration]
        assert own == sorted(own, reverse=True)
