"""Which layouts the steps may use: the dynamic program's candidates, tried on a sample of the real steps.

Each layout costs a trainer process groups and a switch of its parameters, so only those stay that pay. The paper's
candidates follow from the lengths alone. Here the steps are known, so layouts are timed on some of them, and neighbors
of the best ones (some pipelines exchanged for others on as many GPUs) may join. Price: 1 to 10 s, bounded by counts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from packer_cli.errors import ConfigError
from packer_cli.plan.core.streams import rng_state
from packer_cli.plan.core.types import Float64Array, Int64Array
from packer_cli.plan.strategies.hydraulis.candidates import LengthTable, find_layouts
from packer_cli.plan.strategies.hydraulis.costs import SchemeCosts
from packer_cli.plan.strategies.hydraulis.step import PlanStep, plan_sorted

MOST_LAYOUTS = 12
"""Of all steps together. The paper's case study has 7."""
SAMPLE_STEPS = 32
"""Steps on which layouts are tried, at most."""
_LEAST_GAIN = 1e-3
"""Share of the total time that a layout must save to join."""
_SAMPLES = 12_800
"""About how many samples these steps may have together; fewer steps, if more, but at least 4."""
_NEIGHBORS = 300
"""Layouts to try besides those of the dynamic program; fewer, if the steps have many samples."""
_FEW = 8
"""A neighbor that is best in none of the first steps, so many or a quarter of all, is not tried on the others."""


class ChosenLayouts(NamedTuple):
    """The layouts of a data set; each uses all GPUs."""

    counts: Int64Array
    """int64[c, k]: pipelines of each scheme."""
    longest: Int64Array
    """int64[c]: greatest sample that it holds."""

    @classmethod
    def of(cls, counts: Sequence[Sequence[int]] | Int64Array, costs: SchemeCosts) -> ChosenLayouts:
        """Those with these pipelines of each scheme (int[c, k])."""
        array = np.array(counts, dtype=np.int64).reshape(-1, len(costs))
        return cls(array, np.where(array > 0, costs.capacity, 0).max(axis=1))


def choose_layouts(
    steps: Sequence[Int64Array],
    table: LengthTable,
    costs: SchemeCosts,
    num_gpus: int,
    *,
    most: int = MOST_LAYOUTS,
    neighbors: int = _NEIGHBORS,
) -> ChosenLayouts:
    """Choose layouts for a data set, that which saves most first.

    Args:
        steps: samples of a few steps, int64[n] each, by falling length.
        table: of all samples; one of the layouts holds the longest.
        most: layouts to choose, at least 1.

    Raises:
        ConfigError: no layout uses all GPUs and holds the longest sample.
    """
    tried: dict[tuple[int, ...], Float64Array] = {}
    few = max(_FEW, len(steps) // 4)

    def add(counts: Int64Array, best: Float64Array | None = None) -> None:
        """Try a layout, on a few steps only if it is best in none of them."""
        key = tuple(counts.tolist())
        if key in tried:
            return
        seconds = tried[key] = np.full(len(steps), np.inf)
        for j, step in enumerate(steps):
            if best is not None and j == few and (seconds[:j] > best[:j]).all():
                seconds[:] = np.inf
                break
            seconds[j] = layout_seconds(step, counts, costs)

    for counts in [*find_layouts(table, costs, num_gpus).counts, *of_one_scheme(costs, num_gpus)]:
        whole = fill_up(counts, table, costs, num_gpus)
        if whole is not None:
            add(whole)
    chosen = _select(tried, int(table.longest[-1]), costs, most, num_gpus)
    left = neighbors * _SAMPLES // max(_SAMPLES, sum(map(len, steps)))
    expanded: set[tuple[int, ...]] = set()
    while left > 0:
        waiting = [key for key in chosen if key not in expanded]
        if not waiting:
            break
        expanded.add(waiting[0])
        best = np.min([tried[key] for key in chosen], axis=0)
        for counts in _neighbors(np.array(waiting[0]), costs):
            if left > 0 and tuple(counts.tolist()) not in tried:
                add(counts, best)
                left -= 1
        chosen = _select(tried, int(table.longest[-1]), costs, most, num_gpus)
    return ChosenLayouts.of(chosen, costs)


def sampled_steps(offsets: Int64Array) -> Int64Array:
    """Steps (int64) on which to try layouts: evenly among all, fewer if they have many samples.

    Args:
        offsets: int64[s+1], of the samples of each step.
    """
    num_steps = len(offsets) - 1
    number = min(num_steps, SAMPLE_STEPS, max(4, _SAMPLES * num_steps // max(1, int(offsets[-1]))))
    return np.unique(np.linspace(0, num_steps - 1, number).astype(np.int64))


def kinds_of(counts: Int64Array, costs: SchemeCosts) -> Int64Array:
    """The schemes (int64[p]) of a layout's pipelines, by falling capacity."""
    kinds = np.repeat(np.arange(len(counts)), counts)
    return kinds[np.argsort(-costs.capacity[kinds], kind="stable")]


def layout_seconds(
    falling: Int64Array, counts: Int64Array, costs: SchemeCosts, restarts: int = 0, plan: PlanStep = plan_sorted
) -> float:
    """Seconds of a step (int64[n], falling lengths) on a layout; infinite if it does not fit."""
    return plan(falling, kinds_of(counts, costs), costs, restarts, rng_state(0), 0.0).seconds


def of_one_scheme(costs: SchemeCosts, num_gpus: int) -> Iterator[Int64Array]:
    """For each scheme, as many of its pipelines (int64[k]) as the GPUs allow."""
    for kind, gpus in enumerate(costs.gpus.tolist()):
        if gpus <= num_gpus:
            counts = np.zeros(len(costs), dtype=np.int64)
            counts[kind] = num_gpus // gpus
            yield counts


def fill_up(counts: Int64Array, table: LengthTable, costs: SchemeCosts, num_gpus: int) -> Int64Array | None:
    """The layout with more pipelines on its idle GPUs, of the cheapest scheme that fits; None if some stay idle."""
    number, tokens, work = table.sums[:, -1]
    cheapest = np.argsort(costs.gpus * (costs.quadratic * work + costs.linear * tokens + costs.constant * number))
    whole = counts.copy()
    left = num_gpus - int(counts @ costs.gpus)
    for kind in cheapest.tolist():
        fits = left // int(costs.gpus[kind])
        whole[kind] += fits
        left -= fits * int(costs.gpus[kind])
    return None if left else whole


def _neighbors(counts: Int64Array, costs: SchemeCosts) -> Iterator[Int64Array]:
    """Layouts in which one to four pipelines of a scheme give way to one to four of another, on as many GPUs."""
    for old in np.flatnonzero(counts).tolist():
        for new in range(len(costs)):
            for number in range(1, 5):
                gpus = number * int(costs.gpus[old])
                if (
                    new != old
                    and number <= counts[old]
                    and gpus % costs.gpus[new] == 0
                    and gpus // costs.gpus[new] <= 4
                ):
                    neighbor = counts.copy()
                    neighbor[old] -= number
                    neighbor[new] += gpus // int(costs.gpus[new])
                    yield neighbor


def _select(
    tried: dict[tuple[int, ...], Float64Array], longest: int, costs: SchemeCosts, most: int, num_gpus: int
) -> list[tuple[int, ...]]:
    """Greedily the layouts whose fastest ones make all steps together fastest; the first holds every sample."""
    keys = list(tried)
    held = [max(costs.capacity[np.flatnonzero(key)].tolist()) for key in keys]
    require_held(max(held, default=0), longest, costs, num_gpus)
    seconds = np.array([tried[key] for key in keys])
    chosen = [int(np.argmin(np.where(np.array(held) >= longest, seconds.sum(axis=1), np.inf)))]
    best = seconds[chosen[0]]
    while len(chosen) < most:
        totals: Float64Array = np.minimum(seconds, best).sum(axis=1)
        following = int(np.argmin(totals))
        if totals[following] > best.sum() * (1 - _LEAST_GAIN):
            break
        chosen.append(following)
        best = np.minimum(best, seconds[following])
    return [keys[each] for each in chosen]


def require_held(held: int, longest: int, costs: SchemeCosts, num_gpus: int) -> None:
    """Raise ConfigError unless the most tokens that any layout holds are those of the longest sample."""
    if held < longest:
        of_one = costs.gpus[costs.capacity >= longest].min()
        raise ConfigError(
            f"--strategy hydraulis: no layout divides {num_gpus} GPUs into pipelines of which one holds the longest "
            f"sample, {longest:,} tokens; give a multiple of {of_one} GPUs"
        )
