"""Metrics equal numbers computed by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from packer_cli.config import PlanConfig
from packer_cli.config.resolve import resolve
from packer_cli.plan.build import build_plan
from packer_cli.plan.core import randomness
from packer_cli.plan.core.check import check_plan
from packer_cli.plan.core.cut import make_pieces
from packer_cli.plan.core.groups import Group
from packer_cli.plan.core.metrics import balance_ratio, imbalance, measure
from packer_cli.plan.core.randomness import measure_randomness
from packer_cli.plan.core.types import FILLER, Packs, Pieces, Plan, Schedule

K = 1024


def by_hand(packs, *, group, capacity, sp_size, num_gpus, slots, steps):
    """A plan from lists: packs of lengths, and for each iteration its packs."""
    lengths = [length for pack in packs for length in pack]
    sizes = [len(pack) for pack in packs]
    groups = tuple(Group(capacity=c, sp_size=s) for c, s in zip(capacity, sp_size, strict=True))
    slot_group = [[group[p] if p != FILLER else 0 for p in row] for row in slots]
    first = [np.cumsum([0, *(sp_size[g] for g in row[:-1])]) for row in slot_group]
    schedule = Schedule(
        slot_iteration=np.repeat(np.arange(len(slots)), [len(row) for row in slots]),
        slot_pack=np.concatenate(slots),
        slot_group=np.concatenate(slot_group).astype(np.int16),
        slot_first_gpu=np.concatenate(first).astype(np.int32),
        slot_row_length=np.array([groups[g].capacity for row in slot_group for g in row], dtype=np.int32),
        iteration_step=np.array(steps),
    )
    return Plan(
        groups=groups,
        num_gpus=num_gpus,
        pieces=Pieces(
            samples=None,
            start=np.zeros(len(lengths), dtype=np.int32),
            length=np.array(lengths, dtype=np.int32),
        ),
        packs=Packs(
            offsets=np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64),
            pieces=np.arange(len(lengths), dtype=np.int32),
            group=np.array(group, dtype=np.int16),
            cp_sharding=np.zeros(len(group), dtype=np.int8),
        ),
        epochs=(schedule,),
    )


@pytest.fixture
def plan():
    # Iteration 0: the paper's example in group 0. Iteration 1: group 1 on two pairs of GPUs, one pack half full.
    # Iteration 2: group 0 with a filler.
    return by_hand(
        [[K] * 4, [2 * K] * 2, [4 * K], [8 * K], [K, K, K, K], [4 * K], [2 * K, 2 * K]],
        group=[0, 0, 0, 1, 1, 0, 0],
        capacity=[4 * K, 8 * K],
        sp_size=[1, 2],
        num_gpus=4,
        slots=[[0, 1, 2, 5], [3, 4], [6, FILLER, FILLER, FILLER]],
        steps=[0, 0, 1],
    )


def test_the_papers_example_is_a_quarter():
    """HBP, section 3.1: {1K,1K,1K,1K} against {2K,2K}."""
    plan = by_hand(
        [[K] * 4, [2 * K] * 2], group=[0, 0], capacity=[4 * K], sp_size=[1], num_gpus=2, slots=[[0, 1]], steps=[0]
    )
    metrics = measure(plan)
    assert metrics.abr == 0.25
    assert metrics.abr_bound == 0  # {1K, 1K, 2K} twice would be even
    assert (metrics.dbr, metrics.pr, metrics.cr) == (0, 0, 0)
    assert metrics.imbalance == pytest.approx(1 / 0.75)


def test_the_papers_example_by_predicted_cost():
    """With 1K tokens of linear term: 8 and 12 K^2, so the rank of many short samples waits less."""
    plan = by_hand(
        [[K] * 4, [2 * K] * 2], group=[0, 0], capacity=[4 * K], sp_size=[1], num_gpus=2, slots=[[0, 1]], steps=[0]
    )
    metrics = measure(plan, linear=K)
    assert metrics.cbr == pytest.approx(1 / 6)
    assert metrics.cbr_bound == 0
    assert metrics.imbalance == pytest.approx(12 / 10)
    assert replace(metrics, cbr=None, cbr_bound=None, imbalance=4 / 3) == measure(plan)


def test_predicted_cost_by_hand(plan):
    metrics = measure(plan, linear=K)
    cost = [
        [4 * 2, 2 * 2 * 3, 4 * 5, 4 * 5],  # Iteration 0, in K^2.
        [8 * 9, 4 * 2],
        [2 * 2 * 3, 0, 0, 0],
    ]
    cbr = [1 - np.mean(row) / max(row) for row in cost]
    assert metrics.cbr == pytest.approx(np.mean(cbr))
    assert metrics.cbr_bound == pytest.approx(np.mean([cbr[0], cbr[1], 1 - 12 / (4 * 6)]))
    # The pairs of GPUs of iteration 1 share their work.
    by_gpu = np.array(cost[0]), np.array([72 / 2, 8 / 2]), np.array(cost[2])
    assert metrics.imbalance == pytest.approx(np.mean([work.max() * len(work) / work.sum() for work in by_gpu]))
    assert measure(plan, 1, linear=K).cbr == pytest.approx(cbr[1])
    assert metrics.abr == measure(plan).abr


def test_replicas_of_unlike_degrees_by_hand():
    """Two GPUs share a pack of 4K beside one with 2K + 1K and one with 1K: work per GPU counts."""
    plan = by_hand(
        [[4 * K], [2 * K, K], [K]], group=[1, 0, 0], capacity=[4 * K, 8 * K], sp_size=[1, 2], num_gpus=4,
        slots=[[0, 1, 2]], steps=[0],
    )  # fmt: skip
    check_plan(plan)
    metrics = measure(plan)
    assert metrics.abr == pytest.approx(1 - (16 + 5 + 1) / (4 * 16 / 2))
    assert metrics.abr_bound == pytest.approx(metrics.abr)  # No more than two GPUs can share the 4K.
    assert metrics.dbr == pytest.approx(1 - (4 + 3 + 1) / (4 * 3))
    assert metrics.pr == pytest.approx(1 - 8 / (8 + 4 + 4))
    assert metrics.cr == pytest.approx(4 / 8)
    assert measure(plan, 0).abr == pytest.approx(1 - 6 / 10)
    assert measure(plan, 0).abr_bound == 0  # The other replicas could take its samples.


def test_metrics_by_hand(plan):
    metrics = measure(plan)
    abr = [
        (12 + 8 + 0 + 0) / (16 * 4),  # 4, 8, 16, 16 K^2
        (60 + 0) / (64 * 2),  # 64 and 4 K^2
        (8 * 3) / (8 * 4),
    ]
    assert metrics.abr == pytest.approx(np.mean(abr))
    # The longest samples cannot be parted; only the two of iteration 2 could go to two ranks.
    assert metrics.abr_bound == pytest.approx(np.mean([abr[0], abr[1], (4 * 4 - 8) / (4 * 4)]))
    assert metrics.dbr == pytest.approx(np.mean([0, 4 / 16, 3 / 4]))
    assert metrics.num_tokens == 32 * K
    assert metrics.pr == pytest.approx(1 - 32 / (16 + 16 + 16))
    assert metrics.cr == pytest.approx(12 / 32)
    assert metrics.ave_t == pytest.approx(32 * K / 10)
    # Micro-batches of group 1 share their work between two GPUs.
    by_gpu = (np.array(works) for works in ([4, 8, 16, 16], [32, 2], [8, 0, 0, 0]))
    assert metrics.imbalance == pytest.approx(np.mean([work.max() * len(work) / work.sum() for work in by_gpu]))
    assert (metrics.num_packs, metrics.num_iterations, metrics.num_fillers) == (7, 3, 3)
    assert metrics.packs_lower_bound == 5 + 2


def test_metrics_of_one_group(plan):
    short, long = measure(plan, 0), measure(plan, 1)
    assert (short.cr, long.cr) == (0, 1)
    assert long.abr == pytest.approx(60 / 128)
    assert long.abr_bound == pytest.approx(60 / 128)
    assert long.pr == pytest.approx(0.25)
    assert short.num_tokens + long.num_tokens == 32 * K
    assert short.num_samples + long.num_samples == len(plan.pieces)
    # A filler belongs to the group of its iteration.
    assert (short.num_fillers, long.num_fillers) == (3, 0)


def test_the_imbalance_of_pipelines_is_that_of_a_step():
    plan = by_hand(
        [[4], [2], [2], [1]],
        group=[0] * 4,
        capacity=[8],
        sp_size=[1],
        num_gpus=2,
        slots=[[0, 1], [2, 3]],
        steps=[0, 0],
    )
    assert measure(plan).imbalance == pytest.approx((32 / 20 + 8 / 5) / 2)
    groups = tuple(replace(group, pp_size=2) for group in plan.groups)
    (schedule,) = plan.epochs
    piped = replace(
        plan, groups=groups, num_gpus=4, epochs=(replace(schedule, slot_first_gpu=2 * schedule.slot_first_gpu),)
    )
    assert measure(piped).imbalance == pytest.approx(4 * 16 / 25)
    unlike = replace(piped, groups=(groups[0], replace(groups[0], capacity=16, pp_size=4)))
    assert measure(unlike, 0).imbalance is None


def test_balance_ratio_and_imbalance_agree():
    """With equal weights ABR = 1 - 1 / imbalance."""
    rng = np.random.default_rng(0)
    values = rng.integers(1, 100, 40).astype(float)
    iteration = np.repeat(np.arange(8), 5)
    for i in range(8):
        one = values[iteration == i]
        assert balance_ratio(one, np.zeros(5, dtype=int))[0] == pytest.approx(1 - 1 / imbalance(one, np.zeros(5)))
    ratios = balance_ratio(values, iteration)
    expected = [sum(v.max() - x for x in v) / (v.max() * len(v)) for v in (values[iteration == i] for i in range(8))]
    assert ratios == pytest.approx(expected)


def test_an_idle_iteration_is_balanced():
    assert balance_ratio(np.zeros(4), np.zeros(4, dtype=int)).tolist() == [0]
    assert balance_ratio(np.zeros(0), np.zeros(0, dtype=int)).tolist() == []


def test_randomness_sees_a_sorted_order():
    num = 400
    lengths = [[i + 1] for i in range(num)]
    plan = by_hand(
        lengths,
        group=[0] * num,
        capacity=[num],
        sp_size=[1],
        num_gpus=1,
        slots=[[i] for i in range(num)],
        steps=list(range(num)),
    )
    sources = np.array([0] * (num // 2) + [1] * (num // 2))
    figures = measure_randomness(plan, sources)
    assert figures.length_step_correlation == pytest.approx(1)
    assert figures.length_mix_spread > 0.5
    # Every step holds one source only; the mix of the whole is 1/4 and 3/4 in tokens.
    assert figures.source_mix_spread == pytest.approx((0.75 + 0.25) / 2, abs=0.01)
    assert figures.mean_displacement == pytest.approx(num / 3, rel=0.15)
    assert figures.max_displacement < num


def test_randomness_is_the_same_in_blocks(monkeypatch):
    """The definition, for all pieces at once, and the result block by block."""
    lengths = np.random.default_rng(0).integers(1, 64, 500).astype(np.int32)
    sources = np.arange(500) % 3
    rules = resolve(PlanConfig(groups="32,64:2", gpus=4, global_tokens=512)).request
    plan = build_plan(make_pieces(lengths, None, 64, "split"), rules)
    schedule = plan.epochs[0]
    step = np.zeros(len(plan.packs) + 1, dtype=np.int64)
    step[schedule.slot_pack] = schedule.iteration_step[schedule.slot_iteration]
    step_of = np.zeros(500, dtype=np.int64)
    step_of[plan.packs.pieces] = np.repeat(step[:-1], np.diff(plan.packs.offsets))
    correlation = abs(np.corrcoef(lengths, step_of)[0, 1])

    def spread(kinds):
        mix = np.zeros((schedule.num_steps, kinds.max() + 1))
        np.add.at(mix, (step_of, kinds), lengths)
        whole = mix.sum(axis=0) / mix.sum()
        return np.abs(mix / mix.sum(axis=1, keepdims=True) - whole).sum(axis=1).mean() / 2

    for block in (1, 40, 10_000):
        monkeypatch.setattr(randomness, "_BLOCK", block)
        figures = measure_randomness(plan, sources)
        assert figures.length_step_correlation == pytest.approx(correlation)
        assert figures.length_mix_spread == pytest.approx(spread(np.floor(np.log2(lengths)).astype(int)))
        assert figures.source_mix_spread == pytest.approx(spread(sources))
        assert figures.num_steps == schedule.num_steps
