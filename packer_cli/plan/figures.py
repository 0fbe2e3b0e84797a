"""The figures of `hbpack stats`: a plan's metrics, next to those of the paper's baseline on the same data."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer_cli.errors import RunError
from packer_cli.plan.balance import BalanceRule
from packer_cli.plan.build import build_plan
from packer_cli.plan.groups import Group
from packer_cli.plan.metrics import Metrics, least_works, measure, measure_randomness, pieces_by_group
from packer_cli.plan.packing import REGISTRY
from packer_cli.plan.rules import PlanRules
from packer_cli.plan.schedule import StepRules
from packer_cli.plan.types import Pieces, Plan

BASELINE_NAME = "ISF at the longest length"


def plan_stats(plan: Plan, seed: int, source_of_sample: NDArray[Any] | None = None, linear: int = 0) -> dict[str, Any]:
    """JSON values with the keys `overall`, `groups` (a list) and `baseline`.

    The baseline is the paper's: ISF packs everything to the longest capacity, with that group's SP degree; the packs
    are in seeded order. Price: one ISF packing and O(slots).

    Args:
        linear: tokens, see `plan.cost`; above 0 it adds `cbr` and `cbr_bound`.
    """
    baseline = baseline_plan(plan.pieces, plan.groups[-1], plan.num_gpus, seed)
    return {
        **plan_figures(plan, seed, source_of_sample, linear),
        "baseline": {"name": BASELINE_NAME, **_figures(measure(baseline, linear=linear))},
    }


def plan_figures(
    plan: Plan, seed: int, source_of_sample: NDArray[Any] | None = None, linear: int = 0
) -> dict[str, Any]:
    """JSON values with the keys `overall` and `groups`, without the baseline. Price: O(slots)."""
    randomness = measure_randomness(plan, source_of_sample, seed)
    least = least_works(plan)
    predicted = least_works(plan, linear=linear) if linear else None
    overall = {
        **_figures(measure(plan, least=least, linear=linear, least_predicted=predicted)),
        "num_steps": plan.epochs[0].num_steps,
        **_rounded(asdict(randomness)),
    }
    groups = [
        {
            "name": group.name(g),
            "capacity": group.capacity,
            "sp_size": group.sp_size,
            **_figures(measure(plan, g, least=least, linear=linear, least_predicted=predicted)),
        }
        for g, group in enumerate(plan.groups)
    ]
    return {"overall": overall, "groups": groups}


def prove_by_program(figures: dict[str, Any], plan: Plan) -> None:
    """Raise each `packs_lower_bound` of a plan's figures to `lp_lower_bound`, in place.

    Price: one linear program for each group with more packs than its bound so far, and for the baseline, if present.

    Raises:
        RunError: PuLP has no solver.
    """
    before = after = 0
    for group, figures_of_group, pieces in zip(plan.groups, figures["groups"], pieces_by_group(plan), strict=True):
        before += figures_of_group["packs_lower_bound"]
        _raise_bound(figures_of_group, plan.pieces.length[pieces], group.capacity)
        after += figures_of_group["packs_lower_bound"]
    figures["overall"]["packs_lower_bound"] += after - before
    if "baseline" in figures:
        _raise_bound(figures["baseline"], plan.pieces.length, plan.groups[-1].capacity)


def _raise_bound(figures: dict[str, Any], lengths: NDArray[np.int32], capacity: int) -> None:
    if figures["num_packs"] <= figures["packs_lower_bound"]:
        return
    from packer_cli.plan.packing.ilp.cutting_stock import lp_lower_bound  # Imports the solver, 0.1 s.

    try:
        figures["packs_lower_bound"] = lp_lower_bound(lengths, capacity)
    except ValueError as error:
        raise RunError(str(error)) from None


def baseline_plan(pieces: Pieces, longest: Group, num_gpus: int, seed: int, steps: StepRules | None = None) -> Plan:
    """Naive ISF packing at the longest length (HBP's tables 2 and 6)."""
    algorithm = REGISTRY["isf"]
    rules = PlanRules(
        groups=(longest,),
        num_gpus=num_gpus,
        algorithm=algorithm,
        packing_options=algorithm.options(),
        seed=seed,
        steps=steps or StepRules(),
        balance=BalanceRule(window=None),
    )
    return build_plan(pieces, rules)


def length_stats(lengths: NDArray[np.int32]) -> dict[str, Any]:
    """Count, total, mean, percentiles and the share of tokens in long samples."""
    percentiles = (50, 90, 99, 99.9)
    values = np.percentile(lengths, percentiles, method="higher") if len(lengths) else np.zeros(len(percentiles))
    total = int(lengths.sum(dtype=np.int64))
    long_tokens = {
        f"tokens_over_{limit // 1024}k": int(lengths[lengths > limit].sum(dtype=np.int64))
        for limit in (8192, 32768, 131072)
    }
    return {
        "num_samples": len(lengths),
        "num_tokens": total,
        "mean": total / len(lengths) if len(lengths) else 0.0,
        **{f"p{p:g}": int(value) for p, value in zip(percentiles, values, strict=True)},
        "max": int(lengths.max(initial=0)),
        **long_tokens,
    }


def _figures(metrics: Metrics) -> dict[str, Any]:
    return _rounded(asdict(metrics))


def _rounded(values: dict[str, Any]) -> dict[str, Any]:
    """Round to ten digits, since the last bits of a mean may differ between machines; drop values that are None."""
    known = {key: value for key, value in values.items() if value is not None}
    return {key: round(value, 10) if isinstance(value, float) else value for key, value in known.items()}
