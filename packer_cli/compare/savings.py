"""`hbpack simulate`: the predicted epoch of a plan, or of every strategy, beside the baseline's."""

from __future__ import annotations

from typing import Any

from packer_cli.plan.figures import BASELINE_NAME, baseline_plan
from packer_cli.plan.schedule import StepRules
from packer_cli.plan.types import Plan
from packer_cli.simulate.figures import Simulator


def plan_simulation(plan: Plan, simulator: Simulator, seed: int, global_tokens: int | None) -> dict[str, Any]:
    """JSON values: `predicted_with`, the plan's `overall`, `groups` and `notes`, `baseline`, and what it `saves`.

    The baseline is that of `hbpack stats`, with steps of as many tokens. Price: one ISF packing and O(pieces + slots).

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
    """What an epoch saves against another: `gpu_days`, their `share`, and the `speedup`; JSON values."""
    days, other = overall["gpu_days"], baseline["gpu_days"]
    return {
        "gpu_days": other - days,
        "share": 1 - days / other if other else 0.0,
        "speedup": other / days if days else 1.0,
    }


def add_savings(comparison: dict[str, Any], place: int) -> None:
    """Put `saves` into every row that was predicted, against the row at `place`; nothing where that one failed."""
    rows = comparison["rows"]
    if rows[place]["error"]:
        return
    for row in rows:
        if not row["error"]:
            row["saves"] = savings(row["simulation"]["overall"], rows[place]["simulation"]["overall"])
