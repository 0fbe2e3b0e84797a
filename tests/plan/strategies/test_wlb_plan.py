"""WLB-LLM's plans keep the rules of every plan, from the packs to a change of the number of GPUs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packer_cli.config import PlanConfig, PlannedConfig, validate
from packer_cli.config.resolve import require_plan, resolve
from packer_cli.errors import ConfigError
from packer_cli.plan.build import build_plan, check_rest, rest_of_epoch
from packer_cli.plan.core.check import check_pieces, check_plan
from packer_cli.plan.core.cut import make_pieces
from packer_cli.plan.core.segments import row_lengths
from packer_cli.plan.core.types import FILLER
from packer_cli.plan.figures import plan_stats
from packer_cli.plan.strategies.wlb.packers import DelayOptions
from packer_cli.plan.strategies.wlb.plan import epoch_seconds
from tests.config.test_strategies import llama
from tests.plan.test_build import whole

PACKERS = [
    "delay:queues=1",
    "delay:queues=0,s_max=70",
    "delay:thresholds=20+40,s_max=64",
    "original",
    "greedy:batches=3",
]


def rules_for(gpus=4, packing="delay", micro_batches=2, **options):
    packing += f"{',' if ':' in packing else ':'}micro_batches={micro_batches}"
    given = {"groups": "64:2", "gpus": gpus, "strategy": "wlb", "packing": packing, "cost": "1,20"}
    return resolve(PlanConfig(**(given | options))).request


def steps_of(plan, schedule):
    """The packs of each step, as sets."""
    found = [set() for _ in range(schedule.num_steps)]
    for iteration, pack in zip(schedule.slot_iteration.tolist(), schedule.slot_pack.tolist(), strict=True):
        if pack != FILLER:
            found[schedule.iteration_step[iteration]].add(pack)
    return found


@given(
    lengths=st.lists(st.integers(1, 64), min_size=1, max_size=120),
    num_replicas=st.integers(1, 3),
    micro_batches=st.integers(1, 3),
    packing=st.sampled_from(PACKERS),
    align=st.sampled_from([1, 2]),
    epochs=st.integers(1, 3),
    seed=st.integers(0, 2**40),
)
@settings(max_examples=60)
def test_every_plan_passes_the_checker(lengths, num_replicas, micro_batches, packing, align, epochs, seed):
    rules = rules_for(2 * num_replicas, packing, micro_batches, align=align, epochs=epochs, seed=seed)
    plan = build_plan(whole(lengths), rules)
    check_plan(plan)
    check_pieces(plan.pieces, np.array(lengths, dtype=np.int32), np.arange(len(lengths)), is_whole=True)
    assert plan.lockstep == 1
    assert plan.groups[0].capacity == rules.packing_options.capacities(64)[-1]
    for schedule in plan.epochs:
        assert schedule.num_iterations == schedule.num_steps
        counts = np.bincount(np.cumsum(schedule.begins_replica) - 1)
        assert counts.max() <= micro_batches
        assert (counts[np.cumsum(schedule.begins_replica)[schedule.slot_pack == FILLER] - 1] == 1).all()
        assert all(steps_of(plan, schedule))
    first, *others = (steps_of(plan, schedule) for schedule in plan.epochs)
    assert [pack for step in first for pack in sorted(step)] == list(range(len(plan.packs)))
    assert all(sorted(map(sorted, steps)) == sorted(map(sorted, first)) for steps in others)
    # A document runs in the step in which it arrives, or later, and its batch has the tokens that a step may take.
    step_of = {int(i): s for s, step in enumerate(first) for k in step for i in pieces_of(plan, k)}
    steps = np.array([step_of[i] for i in range(len(plan.pieces))])
    arrival = plan.delays.arrival
    assert (np.diff(arrival) >= 0).all()
    assert packing == "greedy:batches=3" or (steps >= arrival).all()
    if packing == "original":
        assert (steps == arrival).all()
    else:
        batch = (np.cumsum(row_lengths(plan), dtype=np.int64) - 1) // (num_replicas * micro_batches * 64)
        assert (np.diff(batch) >= np.diff(arrival)).all()
    again = build_plan(whole(lengths), rules)
    assert all(
        np.array_equal(getattr(a, name), getattr(b, name))
        for a, b in zip(plan.epochs, again.epochs, strict=True)
        for name in vars(a)
    )


@given(
    lengths=st.lists(st.integers(1, 200), min_size=1, max_size=80),
    packing=st.sampled_from(PACKERS),
    align=st.sampled_from([1, 2]),
    seed=st.integers(0, 2**40),
)
def test_the_baseline_packs_what_the_plan_was_given(lengths, packing, align, seed):
    rules = rules_for(packing=packing, align=align, seed=seed)
    given = make_pieces(np.array(lengths, dtype=np.int32), None, 64, "split")
    pieces, _ = rules.strategy.baseline(build_plan(given, rules), rules)
    for name in ("sample", "start", "length"):
        assert getattr(pieces, name).tolist() == getattr(given, name).tolist()


def pieces_of(plan, pack):
    return plan.packs.pieces[plan.packs.offsets[pack] : plan.packs.offsets[pack + 1]]


@given(
    lengths=st.lists(st.integers(1, 64), min_size=20, max_size=150),
    num_gpus=st.sampled_from([2, 4, 6, 10]),
    step=st.integers(0, 3),
    seed=st.integers(0, 99),
)
@settings(max_examples=30)
def test_what_is_left_runs_in_the_same_steps_on_another_number_of_gpus(lengths, num_gpus, step, seed):
    rules = rules_for(seed=seed)
    plan = build_plan(whole(lengths), rules)
    (schedule,) = plan.epochs
    step = min(step, schedule.num_steps)
    left, _ = rest_of_epoch(schedule, step)
    dealing = replace(rules, num_gpus=num_gpus)
    dealt = dealing.strategy.rest(plan, left, dealing, 0)
    check_rest(plan, dealt, left, num_gpus)
    assert steps_of(plan, dealt) == steps_of(plan, schedule)[step:]
    every = dealing.strategy.rest(plan, np.arange(len(plan.packs)), dealing, 1)
    check_plan(replace(plan, num_gpus=num_gpus, epochs=(every,)))
    assert sorted(map(sorted, steps_of(plan, every))) == sorted(map(sorted, steps_of(plan, schedule)))


def long_tail(num=20000, seed=0):
    random = np.random.default_rng(seed)
    return np.minimum(1000, random.lognormal(np.log(16), 1.5, num).astype(np.int64) + 1)


def test_work_is_even_and_the_price_of_it_is_reported():
    lengths = long_tail()
    figures = {}
    for packing in ("original", "greedy", "delay:queues=0", "delay"):
        rules = rules_for(2, packing, 4, groups="1000:2", cost="1,190")
        plan = build_plan(whole(lengths), rules)
        figures[packing] = plan_stats(plan, rules)
    overall = {name: each.overall for name, each in figures.items()}
    # The same arrivals, so that of the baseline's own packing compares it with itself.
    assert figures["original"].baseline.imbalance == overall["original"].imbalance
    assert overall["original"].mean_delay == overall["delay:queues=0"].mean_delay == 0
    assert overall["original"].queues == ()
    assert overall["delay"].imbalance < 1.1 < overall["delay:queues=0"].imbalance < overall["original"].imbalance
    delay = overall["delay"]
    assert 0 < delay.mean_delay <= 0.6
    assert delay.max_delay == max(queue.max_delay for queue in delay.queues)
    waiting = sum(queue.mean_delay * queue.num_tokens for queue in delay.queues)
    assert waiting == pytest.approx(delay.mean_delay * delay.num_tokens)
    assert [queue.threshold for queue in delay.queues] == sorted(queue.threshold for queue in delay.queues)
    # The baseline has rows of the window, and not of what memory holds.
    for each in figures.values():
        assert each.baseline.name == "original packing"
        assert each.baseline.imbalance == pytest.approx(overall["original"].imbalance, rel=0.05)


GIVEN = {"groups": "128k:8", "gpus": 64, "strategy": "wlb"}


def test_the_longest_group_is_the_window():
    config = PlanConfig(**GIVEN)
    assert [str(group) for group in config.groups] == ["128k:8"]
    rules = resolve(config).request
    assert (rules.linear, rules.algorithm.name) == (24576, "delay")
    assert rules.packing_options.capacities(131072) == [262144]
    for packing, capacity in (("delay:s_max=192k", 192 * 1024), ("original", 131072)):
        options = resolve(PlanConfig(**GIVEN, packing=packing)).request.packing_options
        assert options.capacities(131072) == [capacity]
    assert not PlanConfig(gpus=64, strategy="wlb").groups


def test_a_model_gives_the_cost_of_a_stage_and_what_memory_holds(tmp_path):
    model = llama(tmp_path)
    given = {
        "groups": "128k", "parallel": "tp=8,cp=2,pp=4", "gpus": 64, "strategy": "wlb", "model": str(model),
        "gpu": "h100",
    }  # fmt: skip
    known, rules = (getattr(resolve(PlanConfig(**given)), name) for name in ("config", "request"))
    assert known.groups[0].pp_size == 4
    capacities = rules.packing_options.capacities(131072)
    assert capacities == [131072, 163840, 196608, 229376, 262144]
    assert len(rules.rates) == 5
    assert [rates[0] for rates in rules.rates] == sorted(rates[0] for rates in rules.rates)  # More are checkpointed.
    # Tensor and context parallelism communicate, so tokens cost more beside squares than on one GPU.
    one_gpu = resolve(PlanConfig(groups="128k", gpus=1, cost="profile", model=str(model), gpu="h200"))
    assert rules.linear > 1.2 * one_gpu.request.linear
    again = PlannedConfig(**known.decisions())
    assert (resolve(again).request.packing_options, resolve(again).request.linear) == (
        rules.packing_options,
        rules.linear,
    )
    # What is given stands, and a window that hardly fits is no reason to refuse it.
    own = resolve(PlanConfig(**given, packing="delay:queues=2,s_max=200k", cost="1,5")).config
    assert (own.packing, own.cost) == ("delay:queues=2,s_max=200k", "1,5")
    long = resolve(PlanConfig(**given | {"groups": "100m"}))
    assert long.request.packing_options.capacities(100 * 2**20) == [100 * 2**20]


def test_what_a_plan_records_gives_the_same_rules():
    config = resolve(PlanConfig(**GIVEN, packing="delay:queues=2")).config
    again = PlannedConfig(**config.decisions())
    assert again.decisions() == config.decisions()
    assert resolve(again).request.packing_options == resolve(config).request.packing_options


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"balance": "sort"},
            "--balance has no effect on --strategy wlb, which packs in its own way; leave it out",
        ),
        (
            {"global_tokens": 2**22, "packing": "delay:micro_batches=2"},
            "--global-tokens 4194304 has no effect beside micro_batches of the packing; leave one of them out",
        ),
        (
            {"mask": "causal"},
            (
                "--strategy: strategy wlb does not support --mask causal; leave that out, or choose one of balanced, "
                "hbp, naive, longalign-packing"
            ),
        ),
    ],
)
def test_options_that_it_does_not_know_are_refused(options, message):
    with pytest.raises(ConfigError) as error:
        require_plan(validate(PlanConfig, {**GIVEN, **options}))
    assert str(error.value) == message


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"packing": "bfs"}, "--packing: unknown packing algorithm 'bfs'; known: delay, original, greedy, solver"),
        (
            {"packing": "delay:s_max=64k"},
            "--packing: option 's_max' of packing 'delay' must be at least the context window, 128k, got 64k",
        ),
        (
            {"packing": "delay:s_max=128k+192k"},
            (
                "--packing: option 's_max' of packing 'delay' has several values, from which predicted time chooses; "
                "give --model and --gpu, or --profile, or one value"
            ),
        ),
        (
            {"packing": "delay:s_max=131080", "align": 16},
            (
                "--packing: option 's_max' of packing 'delay' must be at least the context window, 128k, and a "
                "multiple of 16 tokens, got 131080"
            ),
        ),
    ],
)
def test_packings_that_do_not_fit_are_refused(options, message):
    with pytest.raises(ConfigError) as error:
        resolve(PlanConfig(**GIVEN, **options))
    assert str(error.value) == message


def test_a_step_has_the_micro_batches_of_its_tokens():
    lengths = long_tail(4000)
    for parallel, number in (("pp=2", 6), ("pp=2,vpp=2", 6), ("pp=4,vpp=2", 8)):
        given = {"groups": "1000:1", "gpus": 8, "strategy": "wlb", "parallel": parallel, "cost": "1,20"}
        request = resolve(PlanConfig(**given, packing="delay:queues=0,s_max=2000")).request
        steps = replace(request.steps, global_tokens=1000 * 6 * request.groups[0].num_dp_ranks(8) + 100)
        plan = build_plan(whole(lengths), replace(request, steps=steps))
        counts = np.bincount(np.cumsum(plan.epochs[0].begins_replica) - 1)
        assert counts.max() == number, parallel


def test_the_capacity_with_the_shortest_epoch_is_taken():
    """Rows of two windows even out better; where they cost more, those of one window are faster."""
    lengths = long_tail(4000)
    given = {"groups": "1000:1", "gpus": 8, "strategy": "wlb", "parallel": "pp=2", "cost": "1,20"}
    for slower, capacity in ((1.0, 2000), (3.0, 1000)):
        rates = ((1e-6, 2e-5, 0.0), (1e-6 * slower, 2e-5 * slower, 0.0))
        options = {"packing": "delay:queues=0,s_max=1000+2000", "group_costs": rates}
        request = resolve(PlannedConfig(**given, lockstep="1", **options)).request
        plan = build_plan(whole(lengths), request)
        assert plan.groups[0].capacity == capacity
        both = [
            epoch_seconds(build_plan(whole(lengths), replace(request, packing_options=one, rates=None)), of_one)
            for one, of_one in zip(
                (DelayOptions(queues="0", s_max=each) for each in ("1000", "2000")), rates, strict=True
            )
        ]
        assert epoch_seconds(plan, rates[capacity // 1000 - 1]) == min(both)


@pytest.mark.parametrize("packing", [*PACKERS, "delay:queues=auto"])
def test_no_samples(packing):
    rules = rules_for(packing=packing)
    plan = build_plan(whole([]), rules)
    check_plan(plan)
    assert (len(plan.packs), plan.epochs[0].num_steps) == (0, 0)
    plan_stats(plan, rules)
