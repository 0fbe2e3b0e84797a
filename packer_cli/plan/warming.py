"""Loads or compiles the kernels of a plan before the lengths are known."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np

from packer_cli.plan.build import build_plan
from packer_cli.plan.core.attention_rates import ShardingRule
from packer_cli.plan.core.check import check_pieces, check_plan
from packer_cli.plan.core.groups import Group
from packer_cli.plan.core.iterations import GroupIterations, one_group_each
from packer_cli.plan.core.pieces import make_pieces
from packer_cli.plan.core.schedule import StepRules, schedule_epoch
from packer_cli.plan.core.sharding import cp_imbalance, cp_slowdown
from packer_cli.plan.core.types import Packs, Plan, as_ids
from packer_cli.plan.figures import baseline_of, plan_figures
from packer_cli.plan.kernels.balance import BalanceRule
from packer_cli.plan.kernels.balance.refine import refine_packs
from packer_cli.plan.strategies.protocol import PlanRequest
from packer_cli.plan.strategies.registry import BASELINE, STRATEGIES


def warm_up(request: PlanRequest) -> None:
    """Load the kernels of a plan. On the first run, compile them, which takes seconds."""
    for share in kernel_shares(request):
        share()


def kernel_shares(request: PlanRequest) -> list[Callable[[], None]]:
    """Functions that together load or compile all kernels from lengths to shards, with little overlap.

    They run the plan on tiny inputs, so each kernel is compiled with the signature that the plan uses.
    """
    # Two functions that take equally long. More would compile shared kernels more than once.
    shares: list[Callable[[], None]] = [partial(_warm_plan, request)]
    if request.balance.refine:
        shares.insert(0, _warm_refine)
    return shares


def _warm_plan(request: PlanRequest) -> None:
    """Build a tiny plan and the baseline of the report, and check and measure another."""
    request = request.strategy.to_warm(request)
    request = replace(request, balance=replace(request.balance, refine=False))
    # A few nearly full packs in every group, and short samples to fill them.
    lengths = [max(1, group.capacity - 1 - i) for group in request.groups for i in range(5)] + [1] * 8
    # Lengths that best-fit packs badly, so that `ilp` loads its solver: 4 4 3 3 3 3 are two packs of 10.
    lengths += [max(1, request.groups[0].capacity * tenths // 10) for tenths in (4, 4, 3, 3, 3, 3)]
    samples = np.arange(len(lengths), dtype=np.int32)
    pieces = make_pieces(np.array(lengths, dtype=np.int32), samples, request.groups[-1].capacity, "split")
    plan = build_plan(pieces, request)
    cp_imbalance(plan)
    cp_slowdown(plan)
    baseline_of(plan, request)
    _warm_checks(request.seed)


def _warm_refine() -> None:
    """Refine an uneven iteration: one pack of four long samples, one of many short ones."""
    lengths = np.array([8] * 4 + [1] * 32, dtype=np.int32)
    refine_packs(np.array([0, 4, 36]), as_ids(np.arange(36)), lengths, 0, 2, 2, 40)


def _warm_checks(seed: int) -> None:
    """Check and measure a plan of two packs in one iteration, with a sample that was cut."""
    lengths = np.array([3, 1, 2], dtype=np.int32)
    samples = as_ids(np.arange(3))
    pieces = make_pieces(lengths, samples, 2, "split")
    groups = (Group(capacity=3),)
    packs = Packs(
        offsets=np.array([0, 2, 4]),
        pieces=as_ids(np.array([0, 2, 1, 3])),
        group=np.zeros(2, dtype=np.int16),
        cp_sharding=np.zeros(2, dtype=np.int8),
    )
    tokens, work = np.array([3, 3]), np.array([5, 5])
    iterations = one_group_each(groups, [GroupIterations(slots=as_ids(np.array([[0, 1]])))], tokens)
    schedule = schedule_epoch(iterations, tokens, work, len(groups), StepRules(), 0)
    plan = Plan(groups=groups, num_gpus=2, pieces=pieces, packs=packs, epochs=(schedule,))
    check_pieces(pieces, lengths, samples, is_whole=True)
    check_plan(plan)
    strategy = STRATEGIES[BASELINE]
    algorithm = strategy.packings()["bfd"]
    asked = PlanRequest(
        strategy=strategy, groups=groups, num_gpus=2, algorithm=algorithm, packing_options=algorithm.options(),
        steps=StepRules(), balance=BalanceRule(), sharding=ShardingRule(), seed=seed,
    )  # fmt: skip
    plan_figures(plan, asked)
