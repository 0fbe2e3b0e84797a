"""The figures of an epoch from its first step to its last."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from packer_cli.plan.core.metrics import iteration_figures
from packer_cli.plan.core.types import Int64Array, Plan


@dataclass(frozen=True, kw_only=True)
class StepSeries:
    """An epoch in b stretches of about equally many steps."""

    first_step: Int64Array
    """int64[b]"""
    num_iterations: Int64Array
    """int64[b]"""
    ratios: dict[str, NDArray[np.float64]]
    """ABR, CBR where it is known, DBR and PR (float64[b]): the means of each stretch's iterations, and for PR its
    padding over its token slots."""


def step_series(plan: Plan, linear: int = 0, most: int = 100) -> StepSeries:
    """The ratios over an epoch. Price: O(pieces + slots).

    Args:
        linear: tokens, see `plan.core.cost`; 0 leaves CBR out.
        most: stretches.
    """
    schedule, figures = plan.epochs[0], iteration_figures(plan, linear=linear)
    num_steps = schedule.num_steps
    num = min(most, num_steps)
    stretch = schedule.iteration_step * num // num_steps
    count = np.bincount(stretch, minlength=num)

    def sums(values: NDArray[np.generic]) -> NDArray[np.float64]:
        return np.bincount(stretch, weights=values, minlength=num).astype(np.float64, copy=False)

    ratios = {"ABR": sums(figures.abr) / count, "DBR": sums(figures.dbr) / count}
    if figures.cbr is not None:
        ratios["CBR"] = sums(figures.cbr) / count
    ratios["PR"] = 1 - sums(figures.tokens) / sums(figures.token_slots)
    first_step = -(-np.arange(num) * num_steps // num)
    return StepSeries(first_step=first_step, num_iterations=count, ratios=ratios)
