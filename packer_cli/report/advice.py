"""Advice on what to try next. Each sentence rests on a figure of the page; what is not known is not advised."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from packer_cli.compare import Comparison
from packer_cli.compare.outcome import PlanSimulation
from packer_cli.config import PlanConfig
from packer_cli.config.fields import GIVE
from packer_cli.format.metrics import OverallMetrics, PlanMetrics, SampleCounts
from packer_cli.plan.core.types import Int32Array, Plan
from packer_cli.plan.figures import Baseline, Stats
from packer_cli.plan.notes import overflow_notes
from packer_cli.plan.strategies.protocol import PlanRequest
from packer_cli.simulate.figures import Simulator
from packer_cli.sizes import counted, format_tokens


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """The predicted epoch of the plan, and what predicts it."""

    simulator: Simulator
    result: PlanSimulation


@dataclass(frozen=True, kw_only=True)
class PlanFacts:
    """A plan and what it comes to."""

    plan: Plan
    config: PlanConfig
    request: PlanRequest
    counts: SampleCounts
    metrics: PlanMetrics
    baseline: Baseline
    prediction: Prediction | None
    """None: no model is known."""
    comparison: Comparison | None
    """The plan beside other strategies and balances; its own row is the first. None: not compared."""
    why_not: str = ""
    """Why it is not compared, for people."""


@dataclass(frozen=True, kw_only=True)
class Facts:
    """Facts that a page is about."""

    name: str
    """Name of the input, as the user gave it."""
    lengths: Int32Array
    """int32[n]: of all samples or, of a plan, of its pieces."""
    sources: tuple[str, ...]
    """Names of the samples' sources."""
    source_of_sample: NDArray[np.integer] | None
    """int[n]: which of them; None: it is not known."""
    stats: Stats
    """Figures as of `hbpack stats`."""
    planned: PlanFacts | None
    """None: only lengths are known."""
    made_from: tuple[tuple[str, str], ...] = ()
    """Facts about the set for the end of the page: name and value."""


_MUCH = 0.02
"""Share of a ratio: less is not worth a change."""


def next_steps(facts: Facts) -> list[str]:
    """Write sentences, the most important first; at least one."""
    planned = facts.planned
    if planned is None:
        how = f"add --groups auto --gpus N with your model and GPU ({GIVE})"
        return [f"Plan these lengths: {how}, or name groups yourself, as in --groups 16k:1,128k:8 --gpus 32."]
    found = [*_on_samples(planned), *_on_waiting(planned), *_on_padding(planned), *_on_communication(planned)]
    if planned.comparison is not None and (advice := planned.comparison.advice) is not None:
        found.append(advice)
    if not found:
        found.append("Nothing on this page asks for a change: padding and waiting are near their proved minimum.")
    if planned.prediction is None:
        found.append(f"To see how long an epoch takes, and what each GPU does, give {GIVE}.")
    return found


def _on_samples(planned: PlanFacts) -> Iterator[str]:
    config = planned.config
    for note in overflow_notes(
        planned.counts, planned.plan.groups[-1].capacity, config.overflow, config.max_path_tokens
    ):
        yield f"{note}. A longer last group keeps them whole."
    if planned.counts.split and planned.counts.items is None:
        capacity = format_tokens(planned.plan.groups[-1].capacity)
        yield (
            f"{counted(planned.counts.split, 'sample')} longer than {capacity} tokens "
            f"{'was' if planned.counts.split == 1 else 'were'} cut: a piece does not see what comes before it. A "
            "longer last group keeps them whole."
        )


def _on_waiting(planned: PlanFacts) -> Iterator[str]:
    overall, request = planned.metrics.overall, planned.request
    if "a cost model" in planned.config.planner.needs:
        return  # They even out predicted time, and not work.
    ratio, bound, what = overall.abr, overall.abr_bound, "attention time"
    if overall.cbr is not None and overall.cbr_bound is not None:
        ratio, bound, what = overall.cbr, overall.cbr_bound, "predicted time"
    if ratio <= _MUCH:
        return
    text = f"GPUs wait for {ratio:.1%} of their {what}"
    best = _best(planned.comparison, lambda overall: overall.waiting)
    if best is not None and best[1] < ratio / 2:
        yield f"{text}; with {best[0]} that is {best[1]:.1%}. The chart of balance and randomness shows what it costs."
        return
    text += f", and {bound:.1%} is the least for the samples of these iterations"
    can_sort = "balance" not in request.strategy.ignores and (
        request.balance.window != 0 or not request.balance.refine
    )
    if can_sort:
        yield f"{text}. --balance refine sorts all packs by their work, and exchanges samples."
    elif bound > ratio / 2:
        yield (
            f"{text}: a few long samples take longer than all else, however the others are dealt{_more_gpus(planned)}."
        )
    else:
        yield f"{text}. hbpack compare shows which packing comes closer to it."


def _more_gpus(planned: PlanFacts) -> str:
    """Suggest a higher SP degree of the longest group, if the model of the GPUs has one that can run."""
    longest, num_gpus = planned.plan.groups[-1], planned.plan.num_gpus
    if planned.prediction is None or longest.cp_size > 1:
        return ""
    degrees = planned.prediction.simulator.model.sp_sizes
    of_replica = longest.num_gpus // longest.sp_size
    able = [each for each in degrees if each > longest.sp_size and num_gpus % (each * of_replica) == 0]
    return f"; SP degree {min(able)} for the longest group runs them on more GPUs" if able else ""


def _on_padding(planned: PlanFacts) -> Iterator[str]:
    overall = planned.metrics.overall
    if overall.pr <= _MUCH:
        return
    best = _best(planned.comparison, lambda overall: overall.pr)
    text = f"{overall.pr:.1%} of the rows is padding"
    if overall.alignment_pr is not None and overall.alignment_pr > overall.pr / 2:
        yield f"{text}, most of it ({overall.alignment_pr:.1%}) because of --align; a lower one pads less."
    elif overall.num_fillers > overall.num_packs / 50:
        fillers = counted(overall.num_fillers, "filler")
        yield (
            f"{text}: {fillers} keep ranks busy that have no pack left. Fewer GPUs, fewer groups or more data in an "
            "epoch leave less of it."
        )
    elif best is not None and best[1] < overall.pr / 2:
        yield f"{text}; with {best[0]} it is {best[1]:.1%}."
    else:
        yield f"{text}. hbpack compare shows every packing algorithm on the same samples."


def _on_communication(planned: PlanFacts) -> Iterator[str]:
    overall, plan = planned.metrics.overall, planned.plan
    shared = [group for group in plan.groups if group.layout.row_ranks > 1]
    if overall.cr < 0.9 or len(plan.groups) > 1 or not shared:
        return
    short = int((plan.pieces.length <= plan.groups[0].capacity // plan.groups[0].layout.row_ranks).sum())
    if short > len(plan.pieces) / 2:
        yield (
            f"All tokens take part in sequence-parallel communication, and {short / len(plan.pieces):.0%} of the "
            "samples would fit one GPU. A group of their own spares them that: see hbpack groups."
        )


def _best(comparison: Comparison | None, value: Callable[[OverallMetrics], float]) -> tuple[str, float] | None:
    """Find the row with the least of a figure, of those that every trainer can run; return its name and figure."""
    rows = [
        (value(row.overall), row.name)
        for row in (comparison.rows if comparison else ())
        if row.overall is not None and row.kind != "baseline" and not row.is_own and not row.request.strategy.demands
    ]
    return min(rows)[::-1] if rows else None
