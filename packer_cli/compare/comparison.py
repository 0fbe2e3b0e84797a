"""`hbpack compare`: many plans of the same samples, side by side, and advice on the one to take.

::

    plan options -> rows -> one process a row: plan, check, measure -> one table

The advice is in sentences, each of which rests on a figure of the table.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import WithJsonSchema

from packer_cli.compare.outcome import ComparedRow, compared_row, savings
from packer_cli.compare.row_process import RowFigures, RowTask, row_figures, save_samples
from packer_cli.compare.rows import Row
from packer_cli.config import PlanConfig
from packer_cli.config.fields import ABILITIES
from packer_cli.config.resolve import size_rule
from packer_cli.engine.local import Failed, attempt, run_isolated
from packer_cli.engine.progress import progress_bar
from packer_cli.format.metrics import GroupChoice, SampleCounts
from packer_cli.format.records import in_json
from packer_cli.plan.core.cut import Samples, require_pieces
from packer_cli.plan.figures import LengthStats, length_stats
from packer_cli.plan.strategies.registry import BASELINE
from packer_cli.simulate.figures import OverallFigures, Simulator
from packer_cli.sizes import duration, ratio

ALIKE = 0.01
"""Predicted epochs within this share of each other count as equally long."""
_MOST_LEFT_OUT = 0.02
"""Most of the attention work that a row may leave out and count as doing the same."""
_MIXED = 1.25
"""Spreads of lengths within this factor of each other count as alike."""
_MUCH_RECOMPUTE = 0.1
"""Share of the GPUs' time that is much recomputing."""

_AT_RUN_TIME = {"trl": "trl-bfd", "axolotl": "axolotl"}
"""The row of what a trainer does without hbpack."""
_PARTS = {
    "waiting": "wait for slower ones",
    "padding": "compute padding",
    "communication": "communicate",
    "recompute": "repeat forward passes",
    "bubbles": "idle in pipeline bubbles",
    "sync": "reduce gradients and gather weights once a step",
    "constant": "pay the fixed price of a micro-batch",
}
"""Verbs for each part of the GPUs' time that strategies differ in."""


def preferred(rows: Sequence[ComparedRow]) -> ComparedRow | None:
    """Return the row to take, of those with a predicted epoch and plans that may be written; None if there is none.

    Of epochs within `ALIKE` of the shortest: the plan of the options, else the simplest, which asks nothing of a
    trainer and has the fewest groups, in random order if it can.
    """
    rows = of_same_work(row for row in rows if row.simulation and row.may_be_taken)
    if not rows:
        return None
    least = min(map(_seconds, rows))
    alike = [row for row in rows if _seconds(row) <= least * (1 + ALIKE)]
    return min(alike, key=lambda row: (not row.is_own, _effort(row), _seconds(row)))


def of_same_work(rows: Iterable[ComparedRow]) -> list[ComparedRow]:
    """Keep the rows that leave out hardly more of the attention work than the one that leaves out least."""
    rows = list(rows)
    least = min((row.work_left_out or 0.0 for row in rows), default=0.0)
    return [row for row in rows if (row.work_left_out or 0.0) <= least + _MOST_LEFT_OUT]


def advice(rows: Sequence[ComparedRow], attention: float | None, trainer: str | None, *, is_auto: bool) -> str | None:
    """Advise a row, against what the trainer does at run time, or naive packing at its best; others as fast, its
    price, and what else would help.

    Args:
        rows: with predicted epochs; others are left out.
        attention: share of the computing time that attention takes; None if it is not known.
        trainer: as in `GpuConfig`.
        is_auto: whether the groups were chosen.
    """
    rows = [row for row in rows if row.simulation]
    return " ".join(_sentences(rows, attention, is_auto, trainer)) or None


def _sentences(
    rows: Sequence[ComparedRow], attention: float | None, is_auto: bool, trainer: str | None
) -> Iterator[str]:
    chosen = preferred(rows)
    if chosen is None:
        return
    able = of_same_work(row for row in rows if row.may_be_taken)
    name, epoch = chosen.name, _epoch(chosen)
    naive = next((row for row in rows if row.name == BASELINE), None)
    own = next((row for row in of_same_work(rows) if row.fits and row.name == _AT_RUN_TIME.get(trainer or "")), None)
    before = own or naive or max(able, key=_seconds)
    text = f"Take {name}{', your own plan' if chosen.is_own and len(rows) > 1 else ''}: an epoch of "
    text += duration(epoch.seconds)
    yield f"{text}{_against(chosen, before)}." if before is not chosen else f"{text}."
    limit = min(map(_seconds, able)) * (1 + ALIKE)
    alike = [row.name for row in sorted(able, key=_seconds) if row is not chosen and _seconds(row) <= limit]
    if alike:
        yield f"Within {ALIKE:.0%} of it: {', '.join(alike)}."
    if naive is not None and len(rows) > 1 and _seconds(naive) <= limit:
        yield "Packing alone gives the gain: evening out work and groups of lengths add nothing here."
    if attention is not None:
        yield f"Attention takes {attention:.0%} of the computing time, and only that part depends on ABR."
    yield from _on_order(chosen, rows)
    needs = chosen.request.strategy.demands
    faster = [row for row in rows if row.lacks and row.fits and row.is_eligible]
    if faster and _seconds(best := min(faster, key=_seconds)) < limit / (1 + ALIKE) ** 2:
        yield (
            f"{best.name} would take {duration(_seconds(best))} with a trainer that can "
            f"{', and '.join(ABILITIES[each] for each in best.lacks)} (--trainer)."
        )
    without = preferred([row for row in rows if not row.request.strategy.demands])
    if needs:
        instead = f"; without that, take {without.name} ({duration(_seconds(without))})" if without else ""
        yield f"Your trainer must {needs}{instead}."
    plain = without or chosen
    recompute = _epoch(plain).split["recompute"] / max(_epoch(plain).seconds, 1e-12)
    if recompute > _MUCH_RECOMPUTE and not is_auto:
        yield (
            f"The GPUs of {plain.name} repeat forward passes for {recompute:.0%} of their time in these groups; "
            "--groups auto weighs that."
        )


def _on_order(chosen: ComparedRow, rows: Sequence[ComparedRow]) -> Iterator[str]:
    """Yield a sentence on what the time costs in randomness."""
    spreads = {row.name: row.overall.length_mix_spread for row in rows if row.overall and row.may_be_taken}
    own = spreads[chosen.name]
    best = min(spreads, key=lambda name: spreads[name])
    words = []
    if own > _MIXED * spreads[best]:
        words.append(f"its steps mix lengths less than those of {best} (spread {ratio(own)}, {ratio(spreads[best])})")
    assert chosen.overall is not None
    delay = chosen.overall.mean_delay
    if delay:
        words.append(f"a token trains {delay:.2f} steps after it arrives")
    if words:
        yield f"The price is in the order: {', and '.join(words)}."


def _against(chosen: ComparedRow, before: ComparedRow) -> str:
    best, worst = _epoch(chosen), _epoch(before)
    text = f", {worst.seconds / best.seconds:.2f} times as fast as {before.name}"
    more = {part: worst.split[part] - best.split[part] for part in _PARTS}
    part = max(_PARTS, key=lambda part: more[part])
    if more[part] > 0.2 * (worst.seconds - best.seconds):
        shares = [epoch.split[part] / epoch.seconds for epoch in (worst, best)]
        text += f", whose GPUs {_PARTS[part]} for {shares[0]:.0%} of their time ({chosen.name}: {shares[1]:.1%})"
    return text


def _epoch(row: ComparedRow) -> OverallFigures:
    assert row.simulation is not None
    return row.simulation.overall


def _seconds(row: ComparedRow) -> float:
    return _epoch(row).seconds


def _effort(row: ComparedRow) -> tuple[bool, int, bool]:
    request = row.request
    return bool(request.strategy.demands), len(request.groups), request.balance.window is not None


PRELOAD = "packer_cli.compare.preload"


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Plans of the same samples."""

    config: Annotated[PlanConfig, WithJsonSchema({"type": "object"})]
    """The plan options that the rows were derived from."""
    lengths: LengthStats
    """The distribution of the samples' lengths."""
    counts: SampleCounts
    """Counts of the samples under these options; rows with another `--overflow` may hold other samples."""
    rows: tuple[ComparedRow, ...]
    """The plans, in the order of the table."""
    predicted_with: Mapping[str, Any] | None = None
    """Origin of predicted times: a profile, or a model's shape and a data sheet; None without predictions."""
    attention_share: float | None = None
    """Share of the computing time that attention takes; None without a model of time."""
    group_choice: GroupChoice | None = None
    """Choice of automatic groups; None if they were named."""

    @property
    def best(self) -> ComparedRow | None:
        """The row to pack with: the shortest predicted epoch or, without predictions, the least padding and waiting.

        Without predictions, rows count that have the groups of the options: neither says anything of communication,
        nor of pipelines, and with pipelines there is no such row.
        """
        found = preferred(self.rows)
        if found is not None or any(group.pp_size > 1 for group in self.config.groups):
            return found
        able = of_same_work(row for row in self.rows if row.may_be_taken)
        able = [row for row in able if row.kind == "strategy" or row.config.groups == self.config.groups]
        known = [(row.overall.lost, row) for row in able if row.overall]
        return min(known, key=itemgetter(0))[1] if known else None

    @property
    @in_json
    def advice(self) -> str | None:
        """Strategy to take; None if the rows are no strategies or no epoch is predicted."""
        strategies = [row for row in self.rows if row.kind == "strategy"]
        return advice(strategies, self.attention_share, self.config.trainer, is_auto=self.group_choice is not None)


def compare(
    samples: Samples,
    config: PlanConfig,
    rows: Sequence[Row],
    workers: int,
    simulator: Simulator | None = None,
    *,
    baseline: int | None = None,
    by_program: bool = False,
    draws: Sequence[Samples] = (),
) -> Comparison:
    """Plan every row; the result is the same for any number of workers, with the rows in the order given.

    Price: that of the plans, `workers` at a time, each with its own memory.

    Args:
        config: the options that the rows were derived from.
        simulator: predicts each row's epoch.
        baseline: index of the row over which the others save; none do if it fails.
        by_program: also prove the least number of packs, see `plan.figures.prove_by_program`.
        draws: of the samples, those to plan with each seed, from that of the options on; empty for all of them once.

    Raises:
        ConfigError: the simulator does not know an SP degree of the groups.
        RunError: there is nothing to plan, or a sample is too long under `--overflow error`.
    """
    if simulator is not None:
        for group in config.groups:
            simulator.model.cost.require_known(group.layout)
    # Errors in the samples concern every row, so they are raised here.
    cut = samples.cut(size_rule(config), config.seed)
    pieces = require_pieces(cut)
    counts = cut.counts(pieces)
    attention = None if simulator is None else round(simulator.attention_share(pieces), 6)
    del cut, pieces
    order = sorted(range(len(rows)), key=lambda i: not rows[i].may_take_longest)  # They start first.
    draws = draws or (samples,)
    outcomes: dict[tuple[int, int], RowFigures | Failed] = {}
    total = len(rows) * len(draws)
    with tempfile.TemporaryDirectory(prefix="hbpack-compare-") as name, progress_bar("Planning", unit="rows") as bar:
        bar(0, total)
        for number, draw in enumerate(draws):
            folder = Path(name) / str(number)
            save_samples(draw, folder)
            tasks: dict[int, RowTask] = {}
            for i in order:
                plans, first = rows[i].candidates or (rows[i].plan,), outcomes.get((i, 0))
                if isinstance(first, Failed):
                    outcomes[i, number] = first
                    continue
                plans = plans if first is None else plans[first.chosen : first.chosen + 1]
                requests = (each.request for each in plans)
                tasks[i] = RowTask(
                    requests=tuple(replace(each, seed=each.seed + number) for each in requests),
                    rule=size_rule(rows[i].plan.config),
                    folder=folder,
                    weights=samples.weights,
                    scale=_tokens(samples) / max(1, _tokens(draw)),
                    simulator=simulator,
                    by_program=by_program,
                )
            elsewhere = [i for i in tasks if not rows[i].is_of_process]
            for place, outcome in run_isolated(row_figures, [tasks[i] for i in elsewhere], workers, [PRELOAD]):
                outcomes[elsewhere[place], number] = outcome
                left = [rows[i].name for i in elsewhere if (i, number) not in outcomes]
                bar(len(outcomes), total, ", ".join(left[:workers]))
            for i in (i for i in tasks if rows[i].is_of_process):
                outcomes[i, number] = attempt(row_figures, tasks[i])
                bar(len(outcomes), total)
    compared = [
        compared_row(row, *(outcomes[i, number] for number in range(len(draws)))) for i, row in enumerate(rows)
    ]
    naive = None if baseline is None else compared[baseline].simulation
    if naive is not None:
        compared = [
            replace(row, saves=savings(row.simulation.overall, naive.overall)) if row.simulation else row
            for row in compared
        ]
    return Comparison(
        predicted_with=simulator.model.origin if simulator else None,
        config=config,
        lengths=length_stats(samples.lengths),
        counts=counts,
        attention_share=attention,
        rows=tuple(compared),
    )


def _tokens(samples: Samples) -> int:
    return int((samples.lengths if samples.among is None else samples.lengths[samples.among]).sum(dtype=np.int64))
