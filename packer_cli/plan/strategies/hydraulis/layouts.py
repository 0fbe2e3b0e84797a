"""Which layouts the steps may use: the dynamic program's candidates, tried on a sample of the real steps.

Each layout costs a trainer process groups and a switch of its parameters, so only those stay that pay. The paper's
candidates are made for mean steps. Here the data set is known, so layouts are timed on real steps, and neighbors of
the best ones (some pipelines exchanged for others on as many GPUs) may join them. Price: 1 to 10 s, bounded by counts.

The candidates are the answers of Hydraulis's dynamic program over the lengths.
A *layout* divides the GPUs among pipelines of unlike schemes. The program divides the lengths into ranges, and gives
each range r pipelines of one scheme, so that the slowest range is fastest. With `t[n][s]` for samples of at most s
tokens on n GPUs::

    t[n][s] = min(t[n-1][s], min over k, u, r of max(t[n - r gpus_k][s-u], C_k(s-u, s, r)))

Its answer for every s is a candidate, because the longest sample differs from step to step, and so are all layouts of
one scheme. As published, C is the range's whole time divided by r, with a micro-batch for each sample. Here it is
`least_pipeline_seconds` of the range's share in a mean step, which also knows packing and that more pipelines do not
shorten the wait for the longest sample.

Price: O(lengths^2 GPUs schemes log GPUs) in steps of both; 0.1 s for 128 lengths, 64 GPUs and 20 schemes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from packer_cli.errors import ConfigError
from packer_cli.plan.core.streams import rng_state
from packer_cli.plan.core.types import Int64Array
from packer_cli.plan.strategies.hydraulis.costs import Float64Array, SchemeCosts
from packer_cli.plan.strategies.hydraulis.step import plan_sorted

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
    """The layouts of a data set, that which saves most first; each uses all GPUs."""

    counts: Int64Array
    """int64[c, k]: pipelines of each scheme."""
    longest: Int64Array
    """int64[c]: greatest sample that it holds."""
    seconds: Float64Array
    """float64[c, s]: of each sampled step; infinite where it does not hold the longest sample."""


def choose_layouts(
    steps: Sequence[Int64Array],
    table: LengthTable,
    costs: SchemeCosts,
    num_gpus: int,
    *,
    most: int = MOST_LAYOUTS,
    neighbors: int = _NEIGHBORS,
) -> ChosenLayouts:
    """Choose layouts for a data set.

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

    for counts in [*find_layouts(table, costs, num_gpus).counts, *_of_one_scheme(costs, num_gpus)]:
        whole = _fill_up(counts, table, costs, num_gpus)
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
    counts = np.array(chosen)
    held = np.where(counts > 0, costs.capacity, 0).max(axis=1)
    return ChosenLayouts(counts, held, np.array([tried[key] for key in chosen]))


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


def layout_seconds(falling: Int64Array, counts: Int64Array, costs: SchemeCosts) -> float:
    """Seconds of a step (int64[n], falling lengths) on a layout, without restarts; infinite if it does not fit."""
    return plan_sorted(falling, kinds_of(counts, costs), costs, 0, rng_state(0), 0.0).seconds


def _of_one_scheme(costs: SchemeCosts, num_gpus: int) -> Iterator[Int64Array]:
    for kind, gpus in enumerate(costs.gpus.tolist()):
        if gpus <= num_gpus:
            counts = np.zeros(len(costs), dtype=np.int64)
            counts[kind] = num_gpus // gpus
            yield counts


def _fill_up(counts: Int64Array, table: LengthTable, costs: SchemeCosts, num_gpus: int) -> Int64Array | None:
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
    if max(held, default=0) < longest:
        of_one = costs.gpus[costs.capacity >= longest].min()
        raise ConfigError(
            f"--strategy hydraulis: no layout divides {num_gpus} GPUs into pipelines of which one holds the longest "
            f"sample, {longest:,} tokens; give a multiple of {of_one} GPUs"
        )
    seconds = np.array([tried[key] for key in keys])
    chosen = [int(np.argmin(np.where(np.array(held) >= longest, seconds.sum(axis=1), np.inf)))]
    best = seconds[chosen[0]]
    while len(chosen) < most:
        totals: NDArray[np.float64] = np.minimum(seconds, best).sum(axis=1)
        following = int(np.argmin(totals))
        if totals[following] > best.sum() * (1 - _LEAST_GAIN):
            break
        chosen.append(following)
        best = np.minimum(best, seconds[following])
    return [keys[each] for each in chosen]


_MOST_LENGTHS = 128
_LEAST_TOKENS = 128
_MOST_GPUS = 128
"""Steps of the dynamic program, unless given."""


class LengthTable(NamedTuple):
    """Samples of a mean step, in l cells of like lengths: number, tokens, work and longest, up to each cell."""

    sums: Float64Array
    """float64[3, l+1]: number, sum of s and sum of s^2 of the samples in the first cells."""
    longest: Int64Array
    """int64[l+1]: greatest length in the first cells; 0 without samples."""


def length_table(lengths: NDArray[np.integer], batch_tokens: int, unit_tokens: int | None = None) -> LengthTable:
    """The table of a data set (int[n]) that is trained in steps of `batch_tokens` tokens.

    >>> length_table(np.array([100, 300, 300, 900]), 1600, unit_tokens=256).longest.tolist()
    [0, 100, 300, 300, 900]
    """
    longest = int(lengths.max(initial=1))
    unit = unit_tokens or max(_LEAST_TOKENS, -(-longest // _MOST_LENGTHS))
    length, number = np.unique(lengths, return_counts=True)
    length = length.astype(np.int64)
    cell = -(-length // unit)
    sums, greatest = np.zeros((3, -(-longest // unit) + 1)), np.zeros(-(-longest // unit) + 1, dtype=np.int64)
    for row, power in enumerate((1, length, length * length)):
        np.add.at(sums[row], cell, number * power)
    np.maximum.at(greatest, cell, length)
    share = min(1.0, batch_tokens / max(1.0, float(sums[1].sum())))
    return LengthTable(np.cumsum(sums, axis=1) * share, np.maximum.accumulate(greatest))


class Layouts(NamedTuple):
    """Layouts, and the predicted seconds of a mean step for which each was made."""

    counts: Int64Array
    """int64[c, k]: pipelines of each scheme; all different."""
    longest: Int64Array
    """int64[c]: greatest length of the samples that the dynamic program planned it for."""
    seconds: Float64Array
    """float64[c]: of the slowest range, see `C` above."""


def find_layouts(table: LengthTable, costs: SchemeCosts, num_gpus: int, unit_gpus: int | None = None) -> Layouts:
    """The dynamic program's layout for every greatest length, the longest first; its GPUs may be less than all.

    Raises:
        ValueError: no scheme fits the GPUs and holds the longest sample.
    """
    unit = unit_gpus or -(-num_gpus // _MOST_GPUS)
    gpus = -(-costs.gpus // unit)
    seconds, moves = _solve(table.sums, table.longest, *costs.arrays, gpus, num_gpus // unit)
    if not np.isfinite(seconds[-1, -1]):
        raise ValueError(
            f"no pipeline of at most {num_gpus} GPUs holds the longest sample, {table.longest[-1]} tokens"
        )
    counts, longest, times = [], [], []
    for s in range(len(table.longest) - 1, 0, -1):
        if table.longest[s] == table.longest[s - 1]:
            continue  # The same samples.
        counts.append(_trace(moves, gpus, s))
        longest.append(int(table.longest[s]))
        times.append(float(seconds[-1, s]))
    _, first = np.unique(np.array(counts), axis=0, return_index=True)
    first.sort()
    return Layouts(np.array(counts)[first], np.array(longest)[first], np.array(times)[first])


def _trace(moves: NDArray[np.int32], gpus: Int64Array, s: int) -> Int64Array:
    counts = np.zeros(len(gpus), dtype=np.int64)
    n = moves.shape[0] - 1
    while s > 0:
        kind, number, cells = moves[n, s].tolist()
        if kind < 0:
            n -= 1
        else:
            counts[kind] += number
            n -= number * int(gpus[kind])
            s -= cells
    return counts


@njit(cache=True)
def _solve(
    sums: NDArray[np.float64],
    longest: NDArray[np.int64],
    rates: NDArray[np.float64],
    capacity: NDArray[np.int64],
    gpus: NDArray[np.int64],
    num_gpus: int,
) -> tuple[NDArray[np.float64], NDArray[np.int32]]:
    """`(t float64[n+1, l+1], moves int32[n+1, l+1, 3])`: scheme, pipelines and cells of the last range of each answer.

    A move of scheme -1 leaves a GPU idle; one of 0 pipelines passes over cells without samples.
    """
    num_cells = len(longest) - 1
    seconds = np.empty((num_gpus + 1, num_cells + 1))
    moves = np.empty((num_gpus + 1, num_cells + 1, 3), dtype=np.int32)
    times = np.empty(num_gpus + 1)
    for s in range(num_cells + 1):
        is_empty = s > 0 and longest[s] == longest[s - 1]
        for n in range(num_gpus + 1):
            seconds[n, s] = seconds[n, s - 1] if is_empty else np.inf if s else 0.0
            moves[n, s, 0], moves[n, s, 1], moves[n, s, 2] = 0 if is_empty else -1, 0, 1
        if is_empty:
            continue
        for below in range(s):
            number, tokens, work = (
                sums[0, s] - sums[0, below],
                sums[1, s] - sums[1, below],
                sums[2, s] - sums[2, below],
            )
            for kind in range(len(gpus)):
                if longest[s] > capacity[kind]:
                    continue
                most = num_gpus // gpus[kind]
                for r in range(1, most + 1):
                    times[r] = least_range_seconds(rates, capacity, kind, number / r, tokens / r, work / r, longest[s])
                for n in range(gpus[kind], num_gpus + 1):
                    # More pipelines make the range faster and leave fewer GPUs to the others: find where these cross.
                    low, high = 1, n // gpus[kind]
                    while low < high:
                        r = (low + high) // 2
                        if times[r] <= seconds[n - r * gpus[kind], below]:
                            high = r
                        else:
                            low = r + 1
                    for r in range(max(1, low - 1), low + 1):
                        slowest = max(times[r], seconds[n - r * gpus[kind], below])
                        if slowest < seconds[n, s]:
                            seconds[n, s] = slowest
                            moves[n, s, 0], moves[n, s, 1], moves[n, s, 2] = kind, r, s - below
        for n in range(1, num_gpus + 1):
            if seconds[n - 1, s] <= seconds[n, s]:
                seconds[n, s] = seconds[n - 1, s]
                moves[n, s, 0] = -1
    return seconds, moves


@njit(cache=True)
def least_range_seconds(
    rates: NDArray[np.float64],
    capacity: NDArray[np.int64],
    kind: int,
    number: float,
    tokens: float,
    work: float,
    longest: int,
) -> float:
    """`least_pipeline_seconds` of a share of samples that need not be whole, but of at least its longest. O(1)."""
    quadratic, linear, constant, waiting = rates[0, kind], rates[1, kind], rates[2, kind], rates[3, kind]
    alone = (quadratic * longest + linear) * longest
    total = max(quadratic * work + linear * tokens, alone)
    fewest = max(1.0, tokens / capacity[kind])
    best = total / alone
    if waiting > 0.0 and constant > 0.0:
        best = min(best, np.sqrt(waiting * total / constant))
    most = max(fewest, min(number, tokens / rates[4, kind]))
    v = fewest if waiting == 0.0 else min(max(best, fewest), most)
    return total + v * constant + waiting * (max(total / v, alone) + constant)
