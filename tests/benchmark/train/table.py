"""Prediction beside measurement."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import comb

import numpy as np

from packer_cli.cost.predict import GpuModel
from packer_cli.plan.core.types import Plan
from packer_cli.simulate.epoch import simulate
from tests.benchmark.report import table
from tests.benchmark.train.measured import TARGET, Floats, iteration_seconds, rank_seconds

APART = 0.05
"""Plans whose predicted epochs differ by more than this part of the shorter one should be measured in the same order.
"""


@dataclass(frozen=True, kw_only=True)
class Result:
    """A plan's epoch, predicted and measured."""

    name: str
    num_packs: int
    num_tokens: int
    predicted: Floats
    """float64[i]: seconds of each iteration."""
    runs: Floats
    """float64 [r, i, ranks]: measured seconds; NaN where a rank did not run."""

    @property
    def measured(self) -> Floats:
        """float64[i]: seconds of each iteration."""
        return iteration_seconds(self.runs)

    @property
    def error(self) -> float:
        """Of the predicted epoch."""
        return float(self.predicted.sum() / self.measured.sum() - 1)

    @property
    def iteration_error(self) -> float:
        """Mean of |predicted - measured| over that of the measured iterations."""
        return float(np.abs(self.predicted - self.measured).sum() / self.measured.sum())

    @property
    def noise(self) -> float:
        """Mean distance of a rank's time in a run from its median time, over the mean of those."""
        medians = np.broadcast_to(rank_seconds(self.runs), self.runs.shape)
        ran = ~np.isnan(self.runs)
        return float(np.abs(self.runs - medians)[ran].sum() / medians[ran].sum())


def result_of(name: str, plan: Plan, model: GpuModel, runs: Floats) -> Result:
    """Predict a plan as `hbpack simulate` does, beside its measured times, float64 [r, i, ranks]."""
    return Result(
        name=name,
        num_packs=len(plan.packs),
        num_tokens=int(plan.pieces.length.sum()),
        predicted=simulate(plan, model).iteration_seconds,
        runs=runs,
    )


def results_table(results: Sequence[Result]) -> str:
    """A row for each plan, the fastest first, in Markdown."""
    naive = next((result for result in results if result.name == "naive"), results[0])
    predicted = _places({result.name: result.predicted.sum() for result in results})
    rows = []
    for place, result in enumerate(sorted(results, key=lambda each: float(each.measured.sum())), start=1):
        seconds, foretold = float(result.measured.sum()), float(result.predicted.sum())
        rows.append([
            result.name, str(result.num_packs), str(len(result.predicted)),
            f"{result.num_tokens / seconds:,.0f}", f"{result.num_tokens / foretold:,.0f}",
            f"{float(naive.measured.sum()) / seconds:.2f}", f"{float(naive.predicted.sum()) / foretold:.2f}",
            str(place), str(predicted[result.name]),
            f"{result.error:+.1%}", f"{result.iteration_error:.1%}", f"{result.noise:.1%}",
        ])  # fmt: skip
    header = [
        "plan", "packs", "iterations", "tokens/s, measured", "predicted", "over naive, measured", "predicted",
        "place, measured", "predicted", "error of the epoch", "error an iteration", "noise of a run",
    ]  # fmt: skip
    return table(header, rows)


def verdict(results: Sequence[Result], fit_error: float) -> str:
    """Whether the targets are met, in sentences."""
    worst = max(results, key=lambda each: abs(each.error))
    return (
        f"The profile's fit is off by {fit_error:.1%} in the mean (target: {TARGET:.0%}); the greatest error of an "
        f"epoch is {worst.error:+.1%}, of {worst.name} (target: {TARGET:.0%}). {pairs_verdict(results)}"
    )


def pairs_verdict(results: Sequence[Result]) -> str:
    """How many pairs of plans that are predicted apart are measured in the same order, and which are not."""
    by_time = sorted(results, key=_predicted)
    pairs = [
        (fast, slow) for fast, slow in combinations(by_time, 2) if _predicted(slow) > (1 + APART) * _predicted(fast)
    ]
    swapped = [f"{slow.name} before {fast.name}" for fast, slow in pairs if _measured(slow) <= _measured(fast)]
    return (
        f"{len(pairs)} of the {comb(len(results), 2)} pairs of plans are predicted more than {APART:.0%} apart; "
        f"{len(pairs) - len(swapped)} of them are measured in the same order"
        + (f", but {', '.join(swapped)}." if swapped else ".")
    )


def _measured(result: Result) -> float:
    return float(result.measured.sum())


def _predicted(result: Result) -> float:
    return float(result.predicted.sum())


def _places(seconds: Mapping[str, float]) -> dict[str, int]:
    """Places from 1 on, the shortest first."""
    return {name: place for place, name in enumerate(sorted(seconds, key=lambda each: seconds[each]), start=1)}
