"""Advice on the predicted plan to take, and why: in sentences, each of which rests on a figure of the table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from packer_cli.compare.outcome import ComparedRow
from packer_cli.config.fields import ABILITIES
from packer_cli.plan.strategies.registry import BASELINE
from packer_cli.simulate.figures import OverallFigures
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
    chosen = preferred(rows)
    if chosen is None:
        return None
    return " ".join(_sentences(chosen, rows, attention, is_auto, trainer))


def _sentences(
    chosen: ComparedRow, rows: Sequence[ComparedRow], attention: float | None, is_auto: bool, trainer: str | None
) -> Iterator[str]:
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
    needs = chosen.spec.request.strategy.demands
    faster = [row for row in rows if row.lacks and row.fits and row.spec.may_be_taken]
    if faster and _seconds(best := min(faster, key=_seconds)) < limit / (1 + ALIKE) ** 2:
        yield (
            f"{best.name} would take {duration(_seconds(best))} with a trainer that can "
            f"{', and '.join(ABILITIES[each] for each in best.lacks)} (--trainer)."
        )
    without = preferred([row for row in rows if not row.spec.request.strategy.demands])
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
    request = row.spec.request
    return bool(request.strategy.demands), len(request.groups), request.balance.window is not None
