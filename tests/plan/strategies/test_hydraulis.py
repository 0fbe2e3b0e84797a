"""Hydraulis's planners: valid on anything, near the optimum, and never better than it."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packer_cli.errors import ConfigError
from packer_cli.plan.strategies.hydraulis.candidates import LengthTable, divide_lengths, find_layouts, length_table
from packer_cli.plan.strategies.hydraulis.layouts import PACKERS, choose_layouts, kinds_of, make_batches
from packer_cli.plan.strategies.hydraulis.plan import plan_data_set
from packer_cli.plan.strategies.hydraulis.stage2 import StepPlan
from tests.naive import hydraulis as naive
from tests.plan.strategies.hydraulis import (
    FITTED,
    any_costs,
    both,
    divided,
    fitted_costs,
    longest_of,
    planned,
    random_step,
)

FEW = st.lists(st.integers(1, 40), min_size=1, max_size=5)


def check_slots(pipeline_of, slot_of, lengths, kinds, costs) -> list[float]:
    """Every sample in one micro-batch that fits, none empty; the seconds of each pipeline."""
    _, twin = both(costs)
    pipelines = [{} for _ in kinds]
    for length, p, slot in zip(lengths, pipeline_of.tolist(), slot_of.tolist(), strict=True):
        pipelines[p].setdefault(slot, []).append(int(length))
    for kind, slots in zip(np.asarray(kinds).tolist(), pipelines, strict=True):
        assert sorted(slots) == list(range(len(slots)))
        assert all(twin.fits(kind, slot) for slot in slots.values())
    return [
        twin.pipeline_seconds(kind, slots.values())
        for kind, slots in zip(np.asarray(kinds).tolist(), pipelines, strict=True)
    ]


def check_step(found: StepPlan, lengths, kinds, costs) -> None:
    """Its micro-batches are valid, and the seconds are theirs."""
    seconds = check_slots(found.pipeline_of, found.slot_of, lengths, kinds, costs)
    assert found.pipeline_seconds.tolist() == pytest.approx(seconds)
    assert found.seconds == pytest.approx(max(seconds))


def test_the_published_memory_formula_gives_the_published_lengths():
    assert [longest_of(tp, 1) for tp in (2, 4, 8, 16)] == [21_888, 46_080, 85_248, 137_984]
    assert len(fitted_costs()) == len(FITTED)


@given(costs=any_costs(), lengths=FEW)
def test_micro_batches_of_a_pipeline_are_near_the_best(costs, lengths):
    falling = np.array(sorted((min(length, int(costs.capacity[0])) for length in lengths), reverse=True))
    slot_of, found = divided(falling, costs, 0)
    best = naive.fastest_pipeline(falling.tolist(), 0, both(costs)[1])
    assert best * (1 - 1e-9) <= found <= best * 1.25
    (seconds,) = check_slots(np.zeros_like(falling), slot_of, falling, [0], costs)
    assert seconds == pytest.approx(found)


@given(costs=any_costs(), lengths=st.lists(st.integers(1, 40), min_size=1, max_size=4), data=st.data())
@settings(max_examples=40)
def test_a_step_is_near_the_best_of_all(costs, lengths, data):
    kinds = np.array(data.draw(st.lists(st.integers(0, len(costs) - 1), min_size=1, max_size=3)))
    found = planned(lengths, kinds, costs)
    if max(lengths) > costs.capacity[kinds].max():
        assert found.seconds == np.inf
        return
    check_step(found, lengths, kinds, costs)
    best = naive.fastest_step(lengths, kinds.tolist(), both(costs)[1])
    assert best * (1 - 1e-9) <= found.seconds <= best * 1.3


def test_both_stages_are_near_the_joint_optimum():
    gaps = []
    for seed in range(50, 70):
        lengths, kinds, costs = random_step(seed, most=5)
        found = planned(lengths, kinds, costs)
        check_step(found, lengths, kinds, costs)
        best = naive.fastest_step(lengths.tolist(), kinds.tolist(), both(costs)[1])
        assert found.seconds >= best * (1 - 1e-9)
        gaps.append(found.seconds / best - 1)
    assert max(gaps) <= 0.05


def test_one_pipeline_and_empty_pipelines_are_planned():
    costs = fitted_costs([(8, 1), (2, 1)])
    alone = planned([5_000, 900, 900], [1], costs)
    assert alone.pipeline_of.tolist() == [0, 0, 0]
    # One sample leaves three pipelines idle; it runs where it is fastest.
    found = planned([20_000], [1, 1, 0, 1], costs)
    assert found.pipeline_of.tolist() == [2]
    assert found.pipeline_seconds[[0, 1, 3]].tolist() == [0, 0, 0]
    assert planned([], [0], costs).seconds == 0


def test_short_samples_do_not_heap_on_the_largest_pipeline():
    costs = fitted_costs([(16, 1), (2, 1)])
    # While the long sample runs on 16 GPUs, the short ones fit beside it there as well: the published rule of ties.
    found = planned([60_000, *[500] * 24], [0, *[1] * 24], costs)
    assert found.pipeline_of[0] == 0
    assert (found.pipeline_of[1:] > 0).all()


def test_equal_seeds_give_equal_steps():
    rng = np.random.default_rng(0)
    lengths = np.minimum(rng.lognormal(6.5, 1.3, 200), 32_768).astype(np.int32)
    costs = fitted_costs()
    kinds = np.array([3, 2, 1, 1, 0, 0, 6, 9])
    first, again = (planned(lengths, kinds, costs, seed=3) for _ in range(2))
    assert all(np.array_equal(one, other) for one, other in zip(first, again, strict=True))


@pytest.mark.parametrize(("as_printed", "cost"), [(False, naive.our_cost), (True, naive.printed_cost)])
@given(costs=any_costs(), data=st.data(), num_gpus=st.integers(1, 8))
@settings(max_examples=60)
def test_the_dynamic_program_equals_brute_force(as_printed, cost, costs, data, num_gpus):
    lengths = np.array(data.draw(st.lists(st.integers(1, 40), min_size=1, max_size=8)))
    table = length_table(lengths, data.draw(st.integers(1, 400)), unit_tokens=10)
    _, twin = both(costs)
    of_rows = [[round(x, 12) for x in row] for row in table.sums.tolist()]
    best = naive.fastest_layout(of_rows, table.longest.tolist(), twin, num_gpus, cost)
    if best == np.inf:
        with pytest.raises(ValueError, match="holds the longest sample"):
            find_layouts(table, costs, num_gpus, as_printed=as_printed)
        return
    found = find_layouts(table, costs, num_gpus, as_printed=as_printed)
    assert (found @ costs.gpus <= num_gpus).all()
    # The program's times are the best for the samples up to each length.
    seconds, _ = divide_lengths(*table, costs.arrays, costs.gpus, num_gpus, as_printed)
    assert seconds[-1, -1] == pytest.approx(best)
    for cells in range(1, len(table.longest)):
        part = [row[: cells + 1] for row in of_rows], table.longest[: cells + 1].tolist()
        assert seconds[-1, cells] == pytest.approx(naive.fastest_layout(*part, twin, num_gpus, cost))


def test_coarse_steps_of_gpus_give_layouts_that_fit():
    costs = fitted_costs()
    lengths = mix(5_000)
    assert (find_layouts(length_table(lengths, 200_000), costs, 400) @ costs.gpus <= 400).all()


def test_a_table_counts_a_mean_step():
    table = length_table(np.array([100, 300, 300, 900]), 800, unit_tokens=256)
    assert isinstance(table, LengthTable)
    assert table.sums[0].tolist() == [0, 0.5, 1.5, 1.5, 2]
    assert table.sums[1, -1] == 800


@given(
    lengths=st.lists(st.integers(1, 30), min_size=1, max_size=60), tokens=st.integers(1, 90), seed=st.integers(0, 3)
)
def test_batches_hold_every_sample_once_and_are_as_large_as_they_may(lengths, tokens, seed):
    lengths = np.array(lengths, dtype=np.int32)
    order, offsets = make_batches(lengths, tokens, seed)
    assert sorted(order.tolist()) == list(range(len(lengths)))
    batches = [lengths[order[a:b]] for a, b in itertools.pairwise(offsets)]
    assert all(len(batch) == 1 or batch.sum() <= tokens for batch in batches)
    assert all(len(batch) for batch in batches)
    for batch, following in itertools.pairwise(batches):
        assert batch.sum() + following[0] > tokens


def test_no_layout_holds_what_no_scheme_does():
    costs = fitted_costs([(2, 1)])
    table = length_table(np.array([30_000]), 30_000)
    with pytest.raises(ValueError, match=r"^no pipeline of at most 64 GPUs holds the longest sample, 30000 tokens$"):
        find_layouts(table, costs, 64)
    with pytest.raises(ConfigError) as raised:
        choose_layouts([np.array([3_000])], np.array([3_000]), 3_000, costs, 63)
    assert str(raised.value) == (
        "--strategy hydraulis: no layout divides 63 GPUs into pipelines of which one holds the longest sample, 3,000 "
        "tokens; give a multiple of 2 GPUs"
    )


def mix(num, seed=0):
    rng = np.random.default_rng(seed)
    long = (rng.pareto(1.1, num) + 1) * 2_500
    lengths = np.where(rng.random(num) < 0.93, rng.lognormal(6.3, 1.1, num), long)
    return np.clip(lengths, 16, 32_768).astype(np.int32)


@pytest.mark.slow
def test_a_data_set_is_planned_whole_and_faster_than_on_any_one_layout():
    lengths, costs = mix(1_500), fitted_costs()
    found = plan_data_set(lengths, costs, 64, 200_000, seed=1)
    assert sorted(found.order.tolist()) == list(range(len(lengths)))
    assert (found.layouts @ costs.gpus == 64).all()
    assert len(set(found.layout_of.tolist())) > 1
    of_one = np.zeros(4)
    for j, (begin, end) in enumerate(itertools.pairwise(found.offsets)):
        own = lengths[found.order[begin:end]]
        kinds = kinds_of(found.layouts[found.layout_of[j]], costs)
        seconds = check_slots(found.pipeline_of[begin:end], found.slot_of[begin:end], own, kinds, costs)
        assert max(seconds) == pytest.approx(found.seconds[j])
        for number, kind in enumerate(range(4)):
            if own.max() <= costs.capacity[kind]:
                of_one[number] += planned(own, np.full(64 // costs.gpus[kind], kind), costs).seconds
            else:
                of_one[number] = np.inf
    assert found.seconds.sum() < 0.95 * of_one.min()
    again = plan_data_set(lengths, costs, 64, 200_000, seed=1)
    assert np.array_equal(found.slot_of, again.slot_of)
    assert np.array_equal(found.layouts, again.layouts)


@pytest.mark.parametrize("packer", PACKERS.values(), ids=list(PACKERS))
@given(data=st.data(), costs=any_costs(), seed=st.integers(0, 2))
@settings(max_examples=30)
def test_any_data_set_is_planned_whole(packer, data, costs, seed):
    num_gpus = int(np.lcm.reduce(costs.gpus)) * data.draw(st.integers(1, 2))
    longest = int(costs.capacity.max())
    lengths = np.array(data.draw(st.lists(st.integers(1, longest), min_size=1, max_size=25)), dtype=np.int32)
    tokens = data.draw(st.integers(1, 200))
    found = plan_data_set(lengths, costs, num_gpus, tokens, seed=seed, packer=packer)
    assert sorted(found.order.tolist()) == list(range(len(lengths)))
    assert (found.layouts @ costs.gpus == num_gpus).all()
    for j, (begin, end) in enumerate(itertools.pairwise(found.offsets)):
        own = lengths[found.order[begin:end]]
        kinds = kinds_of(found.layouts[found.layout_of[j]], costs)
        check_slots(found.pipeline_of[begin:end], found.slot_of[begin:end], own, kinds, costs)
