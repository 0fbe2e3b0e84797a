"""FlexSP's planners: valid on anything, near the optimum, and never better than it."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from packer_cli.plan.strategies.flexsp.batches import plan_batches, solve_in_buckets
from packer_cli.plan.strategies.flexsp.micro_batch import least_seconds, solve_micro_batch
from packer_cli.plan.strategies.flexsp.plan import iteration_seconds, least_total_seconds, plan_data_set
from tests import naive
from tests.naive.flexsp import fastest_groups
from tests.plan.strategies.flexsp import any_costs, both, make_costs, random_batch

LENGTHS = st.lists(st.integers(1, 40), min_size=1, max_size=5)


def check_micro_batch(found, lengths, costs, num_gpus):
    """Valid groups, none empty, by falling degree, and the seconds are theirs."""
    costs, twin = both(costs)
    groups = [[] for _ in found.kinds]
    for length, p in zip(np.asarray(lengths).tolist(), found.group_of.tolist(), strict=True):
        groups[p].append(length)
    kinds = found.kinds.tolist()
    assert all(groups)
    assert kinds == sorted(kinds, reverse=True)
    assert costs.gpus[kinds].sum() <= num_gpus
    assert all(map(twin.fits, kinds, groups))
    assert found.seconds == pytest.approx(max(map(twin.seconds, kinds, groups)))


def check_iterations(found, lengths, costs, num_gpus):
    """Every sample once, packs within capacity, iterations within the GPUs, degrees falling; returns seconds."""
    costs, twin = both(costs)
    packs = [[int(lengths[i]) for i in pack] for pack in naive.packs_of(found.offsets, found.samples)]
    kinds = found.kinds.tolist()
    assert sorted(found.samples.tolist()) == list(range(len(lengths)))
    assert all(packs)
    assert all(map(twin.fits, kinds, packs))
    seconds = []
    for first, stop in zip(found.iterations, found.iterations[1:], strict=False):
        assert kinds[first:stop] == sorted(kinds[first:stop], reverse=True)
        assert 0 < costs.gpus[kinds[first:stop]].sum() <= num_gpus
        seconds.append(max(map(twin.seconds, kinds[first:stop], packs[first:stop])))
    assert found.iterations[-1] == len(kinds)
    assert iteration_seconds(found, lengths, costs).tolist() == pytest.approx(seconds)
    return seconds


@given(costs=any_costs(), lengths=LENGTHS, num_gpus=st.integers(1, 12))
def test_the_search_is_between_the_optimum_and_a_little_more(costs, lengths, num_gpus):
    assume(num_gpus >= costs.gpus[0])
    costs = costs.up_to(num_gpus)
    found = solve_micro_batch(np.array(lengths), costs, num_gpus)
    best = fastest_groups(lengths, both(costs)[1], num_gpus)
    if found.seconds == math.inf:
        assert not len(found.kinds)
        # What hardly fits may not be found.
        fits = costs.capacity[-1] * (num_gpus // costs.gpus[-1])
        assert best == math.inf or sum(lengths) > 0.5 * fits or max(lengths) > costs.capacity[-1] / 2
        return
    check_micro_batch(found, lengths, costs, num_gpus)
    assert best * (1 - 1e-9) <= found.seconds <= 1.2 * best


def test_no_samples_need_no_groups():
    assert solve_micro_batch(np.array([], dtype=np.int32), make_costs([1, 2], 10), 4).seconds == 0


def test_a_sample_too_long_fits_no_groups():
    costs = make_costs([1, 2], 10)
    found = solve_micro_batch(np.array([21]), costs, 4)
    assert (found.seconds, found.group_of.tolist()) == (math.inf, [-1])
    assert solve_in_buckets(np.array([21]), costs, 4, num_buckets=1, time_limit=9).seconds == math.inf


@given(costs=any_costs(), lengths=LENGTHS, num_gpus=st.integers(8, 12))
@settings(max_examples=15)
def test_the_integer_program_equals_brute_force(costs, lengths, num_gpus):
    found = solve_in_buckets(np.array(lengths), costs, num_gpus, num_buckets=len(lengths), time_limit=30)
    best = fastest_groups(lengths, both(costs.up_to(num_gpus))[1], num_gpus)
    assert found.seconds == pytest.approx(best, rel=1e-5)
    if best < math.inf:
        check_micro_batch(found, lengths, costs, num_gpus)


@pytest.mark.parametrize("seed", [0, 1])
def test_buckets_make_the_integer_program_smaller_and_its_answer_no_better(seed):
    lengths, costs, num_gpus = random_batch(seed)
    found = solve_in_buckets(lengths, costs, num_gpus, num_buckets=3, time_limit=1)
    check_micro_batch(found, lengths, costs, num_gpus)
    assert found.seconds <= solve_micro_batch(lengths, costs, num_gpus).seconds


def gaps(seeds, time_limit):
    """The search's seconds over the integer program's, minus 1."""
    found = []
    for seed in seeds:
        lengths, costs, num_gpus = random_batch(seed)
        exact = solve_in_buckets(lengths, costs, num_gpus, num_buckets=len(lengths), time_limit=time_limit)
        search = solve_micro_batch(lengths, costs, num_gpus)
        found.append(search.seconds / exact.seconds - 1)
    return np.array(found)


def test_the_search_is_near_the_optimum():
    found = gaps(range(8), 0.5)
    assert found.max() <= 0.05


@pytest.mark.slow
def test_the_search_is_near_the_optimum_of_a_hundred_batches():
    found = gaps(range(100, 200), 5.0)
    assert found.max() <= 0.02
    assert found.mean() <= 0.002


@given(costs=any_costs(), data=st.data(), window=st.integers(0, 2), seed=st.integers(0, 3))
@settings(max_examples=30)
def test_a_plan_of_the_whole_data_set_is_valid(costs, data, window, seed):
    num_gpus = data.draw(st.integers(int(costs.gpus[-1]), 12))
    lengths = np.array(
        data.draw(st.lists(st.integers(1, int(costs.capacity[-1])), min_size=1, max_size=60)), dtype=np.int32
    )
    found = plan_data_set(lengths, costs, num_gpus, seed=seed, window=window)
    seconds = check_iterations(found, lengths, costs, num_gpus)
    assert sum(seconds) >= least_total_seconds(lengths, costs, num_gpus) * (1 - 1e-9)
    again = plan_data_set(lengths, costs, num_gpus, seed=seed, window=window)
    assert all(np.array_equal(one, other) for one, other in zip(found, again, strict=True))


@given(costs=any_costs(), data=st.data(), batch_tokens=st.integers(1, 200))
@settings(max_examples=30)
def test_a_plan_of_batches_is_valid(costs, data, batch_tokens):
    num_gpus = data.draw(st.integers(int(costs.gpus[-1]), 12))
    lengths = np.array(
        data.draw(st.lists(st.integers(1, int(costs.capacity[-1])), min_size=1, max_size=40)), dtype=np.int32
    )
    found, batch = plan_batches(lengths, costs, num_gpus, batch_tokens)
    check_iterations(found, lengths, costs, num_gpus)
    of_iteration = [
        found.samples[found.offsets[first] : found.offsets[stop]]
        for first, stop in zip(found.iterations, found.iterations[1:], strict=False)
    ]
    members = [
        sorted(np.concatenate([part for part, own in zip(of_iteration, batch, strict=True) if own == number]).tolist())
        for number in range(batch[-1] + 1)
    ]
    # Batches are consecutive, within the tokens, and as large as they allow.
    assert [sample for each in members for sample in each] == list(range(len(lengths)))
    tokens = [int(lengths[each].sum()) for each in members]
    assert all(total <= batch_tokens or len(each) == 1 for total, each in zip(tokens, members, strict=True))
    for total, following in zip(tokens, members[1:], strict=False):
        assert total + int(lengths[following[0]]) > batch_tokens


def test_batches_by_the_integer_program():
    lengths, costs, num_gpus = random_batch(4)
    with_search, _ = plan_batches(lengths, costs, num_gpus, 2**31)

    def solve(lengths, costs, num_gpus, limit):
        return solve_in_buckets(lengths, costs, num_gpus, num_buckets=len(lengths), time_limit=2)

    found, _ = plan_batches(lengths, costs, num_gpus, 2**31, solve=solve)
    assert sum(check_iterations(found, lengths, costs, num_gpus)) <= sum(
        check_iterations(with_search, lengths, costs, num_gpus)
    )


def test_more_micro_batches_than_the_fewest_may_be_faster():
    """Short samples beside a long one that takes all GPUs communicate as it does."""
    lengths = np.array([200] + [14] * 4, dtype=np.int32)
    costs = make_costs([1, 2, 4], 64, send=1e-4, constant=0, send_constant=0)
    few, many = (
        sum(check_iterations(plan_batches(lengths, costs, 4, 2**31, trials=trials)[0], lengths, costs, 4))
        for trials in (1, 5)
    )
    assert many < few


def mix(num, seed=0):
    """Many chats, some documents of up to 128K."""
    rng = np.random.default_rng(seed)
    lengths = np.concatenate([rng.lognormal(6.5, 1.0, num), (rng.pareto(1.2, num // 20) + 1) * 2000])
    return rng.permutation(np.clip(lengths, 1, 131_072).astype(np.int32))


def test_the_whole_data_set_takes_hardly_more_than_the_bound_and_batches_more():
    lengths, costs = mix(10_000), make_costs([1, 2, 4, 8, 16, 32], 16_384)
    least = least_total_seconds(lengths, costs, 32)
    whole, windows = (
        sum(check_iterations(plan_data_set(lengths, costs, 32, window=window), lengths, costs, 32)) / least
        for window in (0, 8)
    )
    one_by_one = plan_batches(lengths[:1500], costs, 32, 2**19)[0]
    batches = sum(check_iterations(one_by_one, lengths[:1500], costs, 32))
    assert whole <= 1.03
    assert whole <= windows <= batches / least_total_seconds(lengths[:1500], costs, 32)


def test_degrees_that_do_not_divide_the_gpus_fill_them():
    lengths, costs = mix(5000), make_costs([1, 3, 6, 12], 16_384)
    lengths = np.minimum(lengths, costs.capacity[-1]).astype(np.int32)
    found = plan_data_set(lengths, costs, 20)
    check_iterations(found, lengths, costs, 20)
    gpus = np.add.reduceat(costs.gpus[found.kinds], found.iterations[:-1])
    assert (gpus == 20).mean() > 0.9


def test_the_bound_of_an_empty_micro_batch():
    costs = make_costs([1], 10)
    assert least_seconds(np.array([], dtype=np.int64), costs.arrays, 4) == 0
    assert len(plan_data_set(np.array([], dtype=np.int32), make_costs([1], 10), 4).kinds) == 0
    assert len(plan_batches(np.array([], dtype=np.int32), make_costs([1], 10), 4, 100)[1]) == 0
