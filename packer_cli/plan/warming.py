"""Loads or compiles the kernels of a plan before the lengths are known."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import numpy as np

from packer_cli.plan.build import build_plan
from packer_cli.plan.core.check import check_plan
from packer_cli.plan.core.cp_sharding import cp_slowdown
from packer_cli.plan.core.cut import make_pieces
from packer_cli.plan.core.types import as_ids
from packer_cli.plan.figures import baseline_of, plan_figures
from packer_cli.plan.kernels.refine import even_samples, refine_packs
from packer_cli.plan.strategies.protocol import PlanRequest

_LONG = 1 << 20
"""Tokens of a pack that is long enough to warm up with; each further group has as many more."""


def warm_up(request: PlanRequest) -> None:
    """Load all kernels from lengths to shards. On the first run, compile them, which takes seconds.

    The plan is run on tiny inputs, so each kernel is compiled with the signature that the plan uses.
    """
    if request.balance.refine:
        _warm_refine()
    _warm_plan(request)


def tiny(request: PlanRequest) -> PlanRequest:
    """Return the request with groups for tiny inputs, and two replicas of the largest, to which kernels deal packs.

    Price: memory for each length.
    """
    groups = tuple(
        replace(group, capacity=min(group.capacity, -(-number * _LONG // unit) * unit))
        for number, group in enumerate(request.groups, 1)
        for unit in (2 * group.num_gpus * group.align,)
    )
    return replace(request, groups=groups, num_gpus=2 * math.lcm(*(group.num_gpus for group in groups)))


def _warm_plan(request: PlanRequest) -> None:
    """Build, check and measure a tiny plan and the baseline of the report."""
    request = tiny(request)
    request = replace(request, balance=replace(request.balance, refine=False), limits=())  # Of flat samples.
    # A few nearly full packs in every group, and short samples to fill them.
    lengths = [max(1, group.capacity - 1 - i) for group in request.groups for i in range(5)] + [1] * 8
    # Lengths that best-fit packs badly, so that `ilp` loads its solver: 4 4 3 3 3 3 are two packs of 10.
    lengths += [max(1, request.groups[0].capacity * tenths // 10) for tenths in (4, 4, 3, 3, 3, 3)]
    samples = np.arange(len(lengths), dtype=np.int32)
    pieces = make_pieces(np.array(lengths, dtype=np.int32), samples, request.groups[-1].capacity, "split")
    plan = build_plan(pieces, request)
    check_plan(plan)
    cp_slowdown(plan)
    baseline_of(plan, request)
    plan_figures(plan, request)


def _warm_refine() -> None:
    """Refine an uneven iteration: one pack of four long samples, one of many short ones."""
    lengths = np.array([8] * 4 + [1] * 32, dtype=np.int32)
    refine_packs(
        np.array([0, 4, 36]), as_ids(np.arange(36)), 0, 2, 2, partial(even_samples, lengths=lengths, capacity=40)
    )
