"""Compares predicted epochs with the baseline's, for `hbpack simulate`."""

from __future__ import annotations

from typing import Any

from packer_cli.plan.figures import BASELINE_NAME, baseline_plan
from packer_cli.plan.schedule import StepRules
from packer_cli.plan.types import Plan
from packer_cli.simulate.figures import Simulator


def plan_simulation(plan: Plan, simulator: Simulator, seed: int, global_tokens: int | None) -> dict[str, Any]:
    """JSON values: `predicted_with`, the plan's `overall`, `groups` and `notes`, the `baseline`, and the `saves`.

    The baseline is that of `hbpack stats`, with equal tokens per step. Price: one ISF packing and O(pieces + slots).

    Raises:
        ConfigError: the plan has an SP degree that the model does not know.
    """
    figures = simulator.figures(plan)
    naive = baseline_plan(plan.pieces, plan.groups[-1], plan.num_gpus, seed, StepRules(global_tokens=global_tokens))
    baseline = simulator.figures(naive)["overall"]
    return {
        "predicted_with": dict(simulator.model.origin),
        **figures,
        "baseline": {"name": BASELINE_NAME, **baseline},
        "saves": savings(figures["overall"], baseline),
    }


def savings(overall: dict[str, Any], baseline: dict[str, Any]) -> dict[str, float]:
    """JSON values: the `gpu_days` that an epoch saves over a baseline, their `share`, and the `speedup`."""
    days, naive = overall["gpu_days"], baseline["gpu_days"]
    return {
        "gpu_days": naive - days,
        "share": 1 - days / naive if naive else 0.0,
        "speedup": naive / days if days else 1.0,
    }


def add_savings(comparison: dict[str, Any], baseline: int) -> None:
    """Add `saves` to every predicted row, against the row of index `baseline`. Does nothing if that row failed."""
    rows = comparison["rows"]
    if rows[baseline]["error"]:
        return
    for row in rows:
        if not row["error"]:
            row["saves"] = savings(row["simulation"]["overall"], rows[baseline]["simulation"]["overall"])
