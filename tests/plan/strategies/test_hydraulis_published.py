"""Hydraulis's candidates and stage 1 as printed."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packer_cli.errors import ConfigError
from packer_cli.plan.core.check import MOST_PROCESS_GROUPS
from packer_cli.plan.core.streams import rng_state
from packer_cli.plan.strategies.hydraulis.candidates import longest_held
from packer_cli.plan.strategies.hydraulis.layouts import PUBLISHED, SEARCH, kinds_of, printed_layouts
from packer_cli.plan.strategies.hydraulis.plan import plan_data_set
from packer_cli.plan.strategies.hydraulis.stage1 import Step, deal_as_printed
from packer_cli.plan.strategies.hydraulis.stage2 import plan_step
from tests.naive import hydraulis as naive
from tests.plan.strategies.hydraulis import any_costs, both, fitted_costs, planned
from tests.plan.strategies.test_hydraulis import check_step, mix


@given(
    costs=any_costs(),
    lengths=st.lists(st.integers(1, 40), max_size=8),
    data=st.data(),
    restarts=st.integers(1, 4),
    seed=st.integers(0, 9),
)
def test_stage_1_deals_as_its_twin(costs, lengths, data, restarts, seed):
    own = data.draw(st.lists(st.integers(0, len(costs) - 1), min_size=1, max_size=4))
    kinds = kinds_of(np.bincount(own, minlength=len(costs)), costs)
    falling, state = np.array(sorted(lengths, reverse=True), dtype=np.int64), rng_state(seed)
    dealt, least = naive.printed_stage_1(falling.tolist(), kinds.tolist(), both(costs)[1], restarts, int(state[0]))
    pipeline_of = np.full(len(falling), -1)
    assert deal_as_printed(Step(falling, kinds, costs.arrays), state, pipeline_of, restarts) == least
    assert pipeline_of.tolist() == ([-1] * len(falling) if dealt is None else dealt)


def published(falling, kinds, costs):
    return plan_step(Step(np.array(falling), np.array(kinds), costs.arrays), rng_state(0), deal_as_printed)


@pytest.mark.slow
def test_one_pipeline_and_empty_pipelines_are_planned():
    costs = fitted_costs([(8, 1), (2, 1)])
    alone = published([5_000, 900, 900], [1], costs)
    assert alone.pipeline_of.tolist() == [0, 0, 0]
    assert np.isfinite(alone.seconds)
    few = published([40_000, 900], [0, 1, 1, 1], costs)
    assert np.count_nonzero(few.pipeline_seconds) == 2
    assert few.seconds == few.pipeline_seconds.max() < np.inf
    assert published([90_000], [0, 1], costs).seconds == np.inf
    assert published([], [0], costs).seconds == 0


def test_short_samples_heap_on_the_largest_pipeline_as_printed():
    costs = fitted_costs([(16, 1), (2, 1)])
    falling, kinds = np.array([60_000, *[500] * 40]), np.array([0, 0, *[1] * 4])
    found = published(falling, kinds, costs)
    check_step(found, falling, kinds, costs)
    # The long one decides the time. A short one goes to an empty pipeline, or else to the first with time to spare.
    assert np.bincount(found.pipeline_of).tolist() == [36, 1, 1, 1, 1, 1]
    searched = planned(falling, kinds, costs)
    assert np.bincount(searched.pipeline_of)[:2].sum() < 36


def test_candidates_are_those_of_the_program_with_one_layout_of_a_single_scheme():
    costs = fitted_costs()
    lengths = mix(5_000)
    found = printed_layouts([], lengths, 0, costs, 64)
    longest = longest_held(found, costs)
    assert (found @ costs.gpus == 64).all()
    assert longest[0] >= lengths.max()
    assert (np.diff(longest) <= 0).all()
    assert len(np.unique(found, axis=0)) == len(found) <= MOST_PROCESS_GROUPS
    single = found[np.count_nonzero(found, axis=1) == 1]
    assert any(costs.capacity[np.argmax(counts)] >= lengths.max() for counts in single)


def test_candidates_are_as_many_as_process_groups_at_most():
    gpus = 2 ** np.arange(7)
    costs = type(fitted_costs())(
        gpus=gpus, pp=np.ones_like(gpus), quadratic=1e-9 / gpus**0.8, linear=1e-4 / gpus**0.9,
        constant=np.full(len(gpus), 1e-3), capacity=700 * gpus,
    )  # fmt: skip
    lengths = np.arange(1, 44_000, 7)
    found = printed_layouts([], lengths, 0, costs, 128)
    longest = longest_held(found, costs)
    assert len(found) == MOST_PROCESS_GROUPS
    assert longest[0] >= lengths.max()
    assert longest[-1] < 5_000


def test_no_layout_divides_an_odd_number_of_gpus():
    with pytest.raises(ConfigError) as raised:
        printed_layouts([], np.array([3_000]), 0, fitted_costs([(2, 1)]), 63)
    assert str(raised.value) == (
        "--strategy hydraulis: no layout divides 63 GPUs into pipelines of which one holds the longest sample, 3,000 "
        "tokens; give a multiple of 2 GPUs"
    )


@pytest.mark.slow
def test_what_is_published_takes_longer_than_the_search():
    lengths, costs = mix(1_500), fitted_costs()
    of = {
        packer.name: plan_data_set(lengths, costs, 64, 200_000, seed=1, packer=packer)
        for packer in (PUBLISHED, SEARCH)
    }
    assert of["search"].seconds.sum() < of["published"].seconds.sum()
    again = plan_data_set(lengths, costs, 64, 200_000, seed=1, packer=PUBLISHED)
    assert np.array_equal(of["published"].slot_of, again.slot_of)
    assert np.array_equal(of["published"].pipeline_of, again.pipeline_of)
