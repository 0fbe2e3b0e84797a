"""Candidates for the layouts of steps: Hydraulis's dynamic program over the lengths (arXiv 2412.07894).

A *layout* divides the GPUs among pipelines of unlike schemes. The program divides the lengths into ranges, and gives
each range r pipelines of one scheme, so that the slowest range is fastest. With `t[n][s]` for samples of at most s
tokens on n GPUs::

    t[n][s] = min(t[n-1][s], min over k, u, r of max(t[n - r gpus_k][s-u], C_k(s-u, s, r)))

Its answer for every s is a candidate, because the longest sample differs from step to step. Only C differs:

- Printed in the paper: the range's whole time divided by r, with a micro-batch for each sample (`printed_seconds`).
- Ours: `least_pipeline_seconds` of the range's share in a mean step, which also knows packing and that more pipelines
  do not shorten the wait for the longest sample (`least_range_seconds`).

Price: O(lengths^2 GPUs schemes log GPUs) in steps of both; 0.1 s for 128 lengths, 64 GPUs and 20 schemes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from packer_cli.errors import ConfigError
from packer_cli.plan.core.cost import GroupCosts, KernelCosts
from packer_cli.plan.core.types import Float64Array, Int32Array, Int64Array
from packer_cli.plan.strategies.hydraulis.costs import rates_of

_MOST_LENGTHS = 128
_LEAST_TOKENS = 128
_MOST_GPUS = 128
"""Steps of the dynamic program."""


class LengthTable(NamedTuple):
    """Samples of a mean step, in l cells of like lengths: number, tokens, work and longest, up to each cell."""

    sums: Float64Array
    """float64[3, l+1]: number, sum of s and sum of s^2 of the samples in the first cells."""
    longest: Int64Array
    """int64[l+1]: greatest length in the first cells; 0 without samples."""


def length_table(lengths: NDArray[np.integer], batch_tokens: int, unit_tokens: int | None = None) -> LengthTable:
    """Make the table of a data set (int[n]) that is trained in steps of `batch_tokens` tokens.

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


def find_layouts(table: LengthTable, costs: GroupCosts, num_gpus: int, *, as_printed: bool = False) -> Int64Array:
    """Find layouts by the dynamic program, pipelines of each scheme (int64[c, k]), all different.

    There is one for every greatest length, the longest first. Layouts may leave GPUs idle.

    Args:
        as_printed: with the paper's cost of a range.

    Raises:
        ValueError: no scheme fits the GPUs and holds the longest sample.
    """
    unit = -(-num_gpus // _MOST_GPUS)
    gpus = -(-costs.gpus // unit)
    seconds, moves = divide_lengths(*table, costs.arrays, gpus, num_gpus // unit, as_printed)
    if not np.isfinite(seconds[-1, -1]):
        raise ValueError(
            f"no pipeline of at most {num_gpus} GPUs holds the longest sample, {table.longest[-1]} tokens"
        )
    holds_more = np.flatnonzero(np.diff(table.longest)) + 1
    counts = np.array([_trace(moves, gpus, s) for s in holds_more[::-1].tolist()])
    _, first = np.unique(counts, axis=0, return_index=True)
    return counts[np.sort(first)]


def _trace(moves: Int32Array, gpus: Int64Array, s: int) -> Int64Array:
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
def divide_lengths(
    sums: Float64Array, longest: Int64Array, costs: KernelCosts, gpus: Int64Array, num_gpus: int, as_printed: bool
) -> tuple[Float64Array, Int32Array]:
    """Return `(t float64[n+1, l+1], moves int32[n+1, l+1, 3])`: scheme, pipelines and cells of each last range.

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
                if longest[s] > costs.capacity[kind]:
                    continue
                whole = printed_seconds(costs.rates, kind, number, tokens, work, longest[s])
                for r in range(1, num_gpus // gpus[kind] + 1):
                    if as_printed:
                        times[r] = whole / r
                    else:
                        times[r] = least_range_seconds(costs, kind, number / r, tokens / r, work / r, longest[s])
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
def printed_seconds(rates: Float64Array, kind: int, number: float, tokens: float, work: float, longest: int) -> float:
    """Return C of the paper before it is divided by r: one pipeline runs each of the samples alone. O(1)."""
    quadratic, linear, constant, waiting = rates_of(rates, kind)
    slowest = (quadratic * longest + linear) * longest + constant
    return float(quadratic * work + linear * tokens + constant * number + waiting * slowest)


@njit(cache=True)
def least_range_seconds(
    costs: KernelCosts, kind: int, number: float, tokens: float, work: float, longest: int
) -> float:
    """Bound the seconds from below as `least_pipeline_seconds`, for a share of samples that need not be whole.

    The share is at least its longest sample. O(1).
    """
    quadratic, linear, constant, waiting = rates_of(costs.rates, kind)
    alone = (quadratic * longest + linear) * longest
    total = max(quadratic * work + linear * tokens, alone)
    fewest = max(1.0, tokens / costs.capacity[kind])
    best = total / alone
    if waiting > 0.0 and constant > 0.0:
        best = min(best, np.sqrt(waiting * total / constant))
    most = max(fewest, min(number, tokens / costs.rates[4, kind]))
    v = fewest if waiting == 0.0 else min(max(best, fewest), most)
    return float(total + v * constant + waiting * (max(total / v, alone) + constant))


def longest_held(counts: Int64Array, costs: GroupCosts) -> Int64Array:
    """Return the longest sample (int64[c]) that each of the layouts holds (int64[c, k], pipelines of each scheme)."""
    found: Int64Array = np.where(counts > 0, costs.capacity, 0).max(axis=1)
    return found


def of_one_scheme(costs: GroupCosts, num_gpus: int) -> Iterator[Int64Array]:
    """Yield, for each scheme, as many of its pipelines (int64[k]) as the GPUs allow."""
    for kind, gpus in enumerate(costs.gpus.tolist()):
        if gpus <= num_gpus:
            counts = np.zeros(len(costs), dtype=np.int64)
            counts[kind] = num_gpus // gpus
            yield counts


def fill_up(counts: Int64Array, table: LengthTable, costs: GroupCosts, num_gpus: int) -> Int64Array | None:
    """Fill a layout's idle GPUs with pipelines of the cheapest scheme that fits; return None if some stay idle."""
    number, tokens, work = table.sums[:, -1]
    cheapest = np.argsort(costs.gpus * (costs.quadratic * work + costs.linear * tokens + costs.constant * number))
    whole = counts.copy()
    left = num_gpus - int(counts @ costs.gpus)
    for kind in cheapest.tolist():
        fits = left // int(costs.gpus[kind])
        whole[kind] += fits
        left -= fits * int(costs.gpus[kind])
    return None if left else whole


def require_held(layouts: Int64Array, longest: int, costs: GroupCosts, num_gpus: int) -> None:
    """Raise ConfigError unless one of the layouts (int64[c, k]) holds the longest sample."""
    if longest_held(layouts, costs).max(initial=0) < longest:
        of_one = costs.gpus[costs.capacity >= longest].min()
        raise ConfigError(
            f"--strategy hydraulis: no layout divides {num_gpus} GPUs into pipelines of which one holds the longest "
            f"sample, {longest:,} tokens; give a multiple of {of_one} GPUs"
        )
