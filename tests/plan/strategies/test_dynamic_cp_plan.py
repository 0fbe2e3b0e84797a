"""Plans of changing CP degrees keep the rules of every plan, from the packs to a change of the number of GPUs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packer_cli.config import PlanConfig, PlannedConfig
from packer_cli.config.resolve import resolve
from packer_cli.errors import ConfigError
from packer_cli.plan.build import build_plan, check_rest, rest_of_epoch
from packer_cli.plan.core.check import check_plan
from packer_cli.plan.core.streams import Stream, rng_state, shuffled
from packer_cli.plan.core.types import FILLER
from tests.plan.test_build import whole

DYNAMIC = ("fcp", "bytescale", "megatron")
NAMES = (*DYNAMIC, "dp-balanced")
lengths_of_all_sizes = st.lists(st.one_of(st.integers(1, 256), st.integers(1, 40)), min_size=1, max_size=120)


def rules_for(strategy, num_gpus=8, **options):
    """Ranks of 64 tokens, at degrees up to four."""
    given = {"groups": "256:4", "gpus": num_gpus, "strategy": strategy, "global_tokens": 500, **options}
    config = PlanConfig(**given)
    if strategy not in ("fcp", "bytescale"):
        return resolve(config).request
    degrees = [group.cp_size for group in config.groups]
    costs = [(4e-6 / d, 1e-4 / d + 1e-6 * (d > 1), 1e-3) for d in degrees]
    given |= {"lockstep": config.lockstep, "groups": config.groups, "group_costs": costs}
    return resolve(PlannedConfig(**given)).request


@given(
    lengths=lengths_of_all_sizes,
    num_gpus=st.sampled_from([4, 8, 20]),
    options=st.sampled_from(
        [{}, {"lockstep": "all"}, {"lockstep": "1"}, {"parallel": "tp=2"}, {"epochs": 2, "align": 4}]
    ),
    seed=st.integers(0, 2**40),
    strategy=st.sampled_from(NAMES),
)
def test_every_plan_passes_the_checker(lengths, num_gpus, options, seed, strategy):
    if "parallel" in options:
        num_gpus *= 2
    rules = rules_for(strategy, num_gpus, seed=seed, **options)
    plan = build_plan(whole(lengths), rules)
    check_plan(plan)
    assert sorted(plan.packs.pieces.tolist()) == list(range(len(lengths)))
    again = build_plan(whole(lengths), rules)
    for schedule, same in zip(plan.epochs, again.epochs, strict=True):
        assert all(np.array_equal(getattr(schedule, name), getattr(same, name)) for name in vars(schedule))
        assert np.bincount(schedule.slot_iteration[schedule.slot_pack != FILLER]).min() >= 1


@given(lengths=lengths_of_all_sizes, seed=st.integers(0, 99), strategy=st.sampled_from(NAMES))
def test_steps_are_the_arrivals(lengths, seed, strategy):
    """In the order of a seeded stream, as large as the tokens of a step allow; later epochs shuffle them."""
    plan = build_plan(whole(lengths), rules_for(strategy, seed=seed, epochs=2))
    of_pack, later = (schedule.step_of_packs(len(plan.packs)) for schedule in plan.epochs)
    step = np.empty(len(lengths), dtype=np.int64)
    step[plan.packs.pieces] = np.repeat(of_pack, np.diff(plan.packs.offsets))
    order = shuffled(len(lengths), rng_state(seed, Stream.ARRIVAL))
    expected, tokens = [], 501
    for length in np.array(lengths)[order].tolist():
        is_new = tokens + length > 500
        tokens = length if is_new else tokens + length
        expected.append(is_new)
    assert step[order].tolist() == (np.cumsum(expected) - 1).tolist()
    assert len(set(zip(of_pack.tolist(), later.tolist(), strict=True))) == len(set(of_pack.tolist()))


@given(
    lengths=st.lists(st.one_of(st.integers(1, 256), st.integers(1, 40)), min_size=20, max_size=120),
    num_gpus=st.sampled_from([4, 8, 12, 16]),
    step=st.integers(0, 3),
    lockstep=st.sampled_from(["1", "all"]),
    strategy=st.sampled_from(NAMES),
)
def test_what_is_left_runs_on_another_number_of_gpus(lengths, num_gpus, step, lockstep, strategy):
    rules = rules_for(strategy, lockstep=lockstep)
    plan = build_plan(whole(lengths), rules)
    (schedule,) = plan.epochs
    left, _ = rest_of_epoch(schedule, min(step, schedule.num_steps))
    dealing = replace(rules, num_gpus=num_gpus)
    check_rest(plan, dealing.strategy.rest(plan, left, dealing, 0), left, num_gpus)
    every = dealing.strategy.rest(plan, np.arange(len(plan.packs)), dealing, 0)
    check_plan(replace(plan, num_gpus=num_gpus, epochs=(every,)))
    assert every.step_of_packs(len(plan.packs)).tolist() == schedule.step_of_packs(len(plan.packs)).tolist()


@pytest.mark.parametrize("strategy", DYNAMIC)
def test_degrees_mix_in_an_iteration(strategy):
    random = np.random.default_rng(0)
    lengths = np.concatenate([random.integers(1, 40, 900), random.integers(100, 256, 40)])
    plan = build_plan(whole(lengths), rules_for(strategy, global_tokens=4000))
    (schedule,) = plan.epochs
    pairs = set(zip(schedule.slot_iteration.tolist(), schedule.slot_group.tolist(), strict=True))
    assert len(pairs) > schedule.num_iterations
    counts = np.bincount(np.cumsum(schedule.begins_replica))[1:]
    assert (counts.max() > 1) == (strategy != "fcp"), "only where replicas run freely, they have several packs"


@pytest.mark.parametrize("parallel", [None, "tp=2"])
def test_replicas_are_the_groups_that_megatron_creates(parallel):
    """Powers of two that begin at a multiple of themselves, so that its `local_cp_size` alone finds the ranks.

    `create_dynamic_dp_cp_groups`, `megatron/core/parallel_state.py` of NVIDIA/Megatron-LM d48bd6b (branch dev).
    """
    lengths = np.random.default_rng(0).integers(1, 256, 300)
    options = {"parallel": parallel} if parallel else {}
    plan = build_plan(whole(lengths), rules_for("megatron", num_gpus=16, **options))
    degrees = set()
    for layout, firsts in plan.replicas.items():
        assert layout.cp.bit_count() == 1
        assert all(first % layout.num_gpus == 0 for first in firsts)
        degrees.add(layout.cp)
    assert degrees == {1, 2, 4}


def test_samples_of_several_ranks_are_alone_in_bytescale():
    lengths = np.random.default_rng(0).integers(1, 256, 200)
    plan = build_plan(whole(lengths), rules_for("bytescale"))
    longest = np.maximum.reduceat(lengths[plan.packs.pieces], plan.packs.offsets[:-1])
    sizes = np.diff(plan.packs.offsets)
    assert (sizes[longest > 64] == 1).all()
    assert sizes.max() > 1
    needed = -(-longest // 64)
    assert [plan.groups[g].cp_size for g in plan.packs.group.tolist()] == needed.tolist()


def test_pipelines_are_refused_where_degrees_change():
    with pytest.raises(ConfigError) as error:
        resolve(PlanConfig(groups="256:4", gpus=8, strategy="megatron", global_tokens=500, parallel="pp=2"))
    assert str(error.value) == (
        "--strategy megatron changes CP degrees between micro-batches, and plans no pipelines; leave pp out of "
        "--parallel"
    )
    one_degree = PlanConfig(groups="256:4", gpus=8, strategy="dp-balanced", global_tokens=500, parallel="pp=2")
    check_plan(build_plan(whole([100] * 40), resolve(one_degree).request))
