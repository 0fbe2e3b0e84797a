"""Plans of mixed degrees keep the rules of every plan, from the packs to a change of the number of GPUs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packer_cli.config import PlannedConfig
from packer_cli.config.resolve import resolve
from packer_cli.plan.build import build_plan, check_rest, rest_of_epoch
from packer_cli.plan.core.check import check_plan
from packer_cli.plan.core.streams import Stream, rng_state, shuffled
from packer_cli.plan.core.types import FILLER
from packer_cli.plan.figures import baseline_of, plan_stats
from tests.plan.test_build import whole


def costs_of(degrees):
    return tuple((4e-6 / degree, 1e-4 / degree + 1e-6 * (degree > 1), 1e-3) for degree in degrees)


COSTS = costs_of((1, 2, 4))
MIXES = {"64:1,128:2,256:4": COSTS, "64:1,128:2,192:3,384:6": costs_of((1, 2, 3, 6))}


def rules_for(num_gpus, groups="64:1,128:2,256:4", **options):
    given = {"groups": groups, "gpus": num_gpus, "strategy": "flexsp:all", "group_costs": MIXES[groups]}
    if options.get("strategy") == "flexsp":
        given["packing"] = "search"
    return resolve(PlannedConfig(**(given | options))).request


def replicas_of(plan, schedule, iteration):
    """(degree, first GPU, pack) of each slot."""
    own = schedule.slot_iteration == iteration
    return list(
        zip(
            plan.slot_gpus(schedule)[own].tolist(), schedule.slot_first_gpu[own].tolist(),
            schedule.slot_pack[own].tolist(), strict=True,
        )
    )  # fmt: skip


@given(
    lengths=st.lists(st.integers(1, 256), min_size=1, max_size=120),
    num_gpus=st.sampled_from([6, 7, 8, 12]),
    groups=st.sampled_from(list(MIXES)),
    epochs=st.integers(1, 2),
    balance=st.sampled_from(["refine", "window:2"]),
    steps=st.sampled_from([{}, {"global_tokens": 500}, {"global_tokens": 500, "lockstep": "1"}]),
    seed=st.integers(0, 2**40),
    strategy=st.sampled_from(["flexsp:all", "flexsp", "batchada"]),
)
def test_every_plan_passes_the_checker(lengths, num_gpus, groups, epochs, balance, steps, seed, strategy):
    """Also on GPUs that the degrees do not divide."""
    if strategy != "flexsp:all":
        steps = {"global_tokens": 500} | steps
    rules = rules_for(num_gpus, groups, epochs=epochs, balance=balance, seed=seed, strategy=strategy, **steps)
    plan = build_plan(whole(lengths), rules)
    check_plan(plan)
    assert sorted(plan.packs.pieces.tolist()) == list(range(len(lengths)))
    for schedule in plan.epochs:
        assert sorted(p for p in schedule.slot_pack.tolist() if p != FILLER) == list(range(len(plan.packs)))
        for i in range(schedule.num_iterations):
            slots = replicas_of(plan, schedule, i)
            replicas = sorted({(first, degree) for degree, first, _ in slots})
            degrees = [degree for _, degree in replicas]
            assert degrees == sorted(degrees, reverse=True)
            assert [first for first, _ in replicas] == np.cumsum([0, *degrees[:-1]]).tolist()
            assert sum(degrees) == num_gpus
            assert len(slots) == len(replicas) or "lockstep" in steps
            for first, _ in replicas:
                own = [pack for _, gpu, pack in slots if gpu == first]
                assert FILLER not in own or len(own) == 1
            assert any(pack != FILLER for *_, pack in slots)
    again = build_plan(whole(lengths), rules)
    assert all(
        np.array_equal(getattr(a, name), getattr(b, name))
        for a, b in zip(plan.epochs, again.epochs, strict=True)
        for name in vars(a)
    )


def test_the_baseline_beside_it_is_a_plan_of_its_own():
    """On the GPUs that its one degree divides, so that its replicas are all of them, and its bound holds."""
    plan = build_plan(whole(np.random.default_rng(0).integers(1, 256, 200)), rules_for(11))
    baseline = baseline_of(plan, rules_for(11)).plan
    assert baseline.num_gpus == 8
    check_plan(baseline)
    figures = plan_stats(plan, rules_for(11))
    assert 0 < figures.baseline.abr_bound <= figures.baseline.abr


def test_degrees_mix_in_an_iteration():
    """Where attention is cheap, full packs of all degrees take about the same time."""
    random = np.random.default_rng(0)
    lengths = np.concatenate([random.integers(1, 40, 900), random.integers(100, 256, 40)])
    plan = build_plan(whole(lengths), rules_for(8, group_costs=tuple((a / 100, b, c) for a, b, c in COSTS)))
    (schedule,) = plan.epochs
    mixed = [i for i in range(schedule.num_iterations) if len({d for d, *_ in replicas_of(plan, schedule, i)}) > 1]
    assert mixed


@given(lengths=st.lists(st.integers(1, 256), min_size=1, max_size=120), seed=st.integers(0, 99))
def test_batches_are_the_steps_and_stay_steps(lengths, seed):
    """In the order of a seeded stream, as large as the tokens of a step allow; BatchAda has one degree a step."""
    pieces, steps = whole(lengths), []
    for strategy in ("flexsp", "batchada"):
        rules = rules_for(8, strategy=strategy, global_tokens=500, seed=seed, epochs=2)
        plan = build_plan(pieces, rules)
        of_pack = plan.epochs[0].step_of_packs(len(plan.packs))
        step = np.empty(len(lengths), dtype=np.int64)
        step[plan.packs.pieces] = np.repeat(of_pack, np.diff(plan.packs.offsets))
        steps.append(step.tolist())
        again = plan.epochs[1].step_of_packs(len(plan.packs))
        assert len(set(zip(of_pack, again, strict=True))) == len(set(of_pack)) == len(set(again))
        dealing = replace(rules, num_gpus=12)
        rest = dealing.strategy.rest(plan, np.arange(len(plan.packs)), dealing, 0)
        assert rest.step_of_packs(len(plan.packs)).tolist() == of_pack.tolist()
        if strategy == "batchada":
            assert len(set(zip(of_pack, plan.packs.group, strict=True))) == len(set(of_pack))
    tokens = np.bincount(steps[0], weights=lengths)
    arrived = np.array(lengths)[shuffled(len(lengths), rng_state(seed, Stream.ARRIVAL))]
    assert np.bincount(steps[0]).min() >= 1
    ends = np.cumsum(np.bincount(steps[0]))
    assert [arrived[a:b].sum() for a, b in zip([0, *ends], ends, strict=False)] == tokens.tolist()
    assert all(total <= 500 for total in tokens)
    assert all(total + arrived[end] > 500 for total, end in zip(tokens, ends[:-1], strict=False))
    assert steps[0] == steps[1]


@given(
    lengths=st.lists(st.integers(1, 256), min_size=20, max_size=150),
    num_gpus=st.sampled_from([4, 6, 8, 16]),
    step=st.integers(0, 3),
    steps=st.sampled_from([{}, {"global_tokens": 700, "lockstep": "1"}]),
    seed=st.integers(0, 99),
    strategy=st.sampled_from(["flexsp:all", "flexsp", "batchada"]),
)
def test_what_is_left_runs_on_another_number_of_gpus(lengths, num_gpus, step, steps, seed, strategy):
    if strategy != "flexsp:all":
        steps = {"global_tokens": 700} | steps
    rules = rules_for(8, seed=seed, strategy=strategy, **steps)
    plan = build_plan(whole(lengths), rules)
    (schedule,) = plan.epochs
    left, _ = rest_of_epoch(schedule, min(step, schedule.num_steps))
    dealing = replace(rules, num_gpus=num_gpus)
    dealt = dealing.strategy.rest(plan, left, dealing, 0)
    check_rest(plan, dealt, left, num_gpus)
    every = dealing.strategy.rest(plan, np.arange(len(plan.packs)), dealing, 1)
    check_plan(replace(plan, num_gpus=num_gpus, epochs=(every,)))


def test_balance_is_of_predicted_time():
    """Replicas of an iteration take nearly the same seconds, though their work differs."""
    random = np.random.default_rng(1)
    lengths = np.concatenate([random.integers(1, 60, 4000), random.integers(100, 256, 200)])
    plan = build_plan(whole(lengths), rules_for(8))
    (schedule,) = plan.epochs
    length = plan.pieces.length[plan.packs.pieces].astype(np.float64)
    work, tokens = (np.append(np.add.reduceat(x, plan.packs.offsets[:-1]), 0) for x in (length**2, length))
    quadratic, linear, constant = np.array(COSTS).T[:, schedule.slot_group]
    seconds = quadratic * work[schedule.slot_pack] + linear * tokens[schedule.slot_pack] + constant
    slowest = np.zeros(schedule.num_iterations)
    np.maximum.at(slowest, schedule.slot_iteration, seconds)
    busy = float(seconds @ plan.slot_gpus(schedule))
    assert busy / (slowest.sum() * 8) == pytest.approx(1, abs=0.03)
