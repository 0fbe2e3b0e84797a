"""Schemes that memory holds and that are worth having, their costs, and candidates for the layouts of steps.

Candidates are those of Hydraulis's dynamic program over the lengths (arXiv 2412.07894).
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
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from packer_cli.errors import ConfigError
from packer_cli.format.layout import Layout
from packer_cli.jit import njit
from packer_cli.plan.core.cost import GroupCosts, KernelCosts
from packer_cli.plan.core.groups import Group
from packer_cli.plan.core.types import Float64Array, Int32Array, Int64Array
from packer_cli.plan.strategies.protocol import Rates, stage_rates
from packer_cli.sizes import counted

if TYPE_CHECKING:
    from packer_cli.cost.predict import GpuModel


@njit(cache=True, no_cpython_wrapper=True)
def rates_of(rates: Float64Array, kind: int) -> tuple[float, float, float, float]:
    """Return the first four rates of a scheme: quadratic, linear and constant seconds, and the stages that wait."""
    return rates[0, kind], rates[1, kind], rates[2, kind], rates[3, kind]


@njit(cache=True)
def least_pipeline_seconds(costs: KernelCosts, kind: int, work: int, tokens: int, longest: int, num: int) -> float:
    """Bound the seconds of every division of the samples into micro-batches from below; most are hardly slower. O(1).

    With v micro-batches of total cost S, without constants, of which the costliest sample takes x, the pipeline takes
    at least `S + v c + (pp - 1) (max(S / v, x) + c)`. That is least at v = S / x, or before it at
    `sqrt((pp - 1) S / c)`, within `ceil(tokens / capacity) <= v <= num`. See also `GroupCosts.enough`.

    Args:
        costs: of `GroupCosts.arrays`.
        kind: the pipeline's scheme.
        work, tokens, longest, num: sum of s^2, sum of s, greatest s, and number of the samples.
    """
    if num == 0:
        return 0.0
    quadratic, linear, constant, waiting = rates_of(costs.rates, kind)
    total: float = quadratic * work + linear * tokens
    fewest = -(-tokens // costs.capacity[kind])
    if waiting == 0.0:
        found: float = total + fewest * constant
        return found
    alone = (quadratic * longest + linear) * longest
    best = total / alone
    if constant > 0.0:
        best = min(best, np.sqrt(waiting * total / constant))
    least = np.inf
    most = max(fewest, min(num, int(tokens / costs.rates[4, kind])))
    for near in range(2):
        v = min(max(int(best) + near, fewest), most)
        least = min(least, total + v * constant + waiting * (max(total / v, alone) + constant))
    return least


MOST_STAGES = 8
MOST_CP = 8
"""Without `--parallel`."""
_LEAST_CAPACITY = 1024
_ROW_MULTIPLE = 128


class Scheme(NamedTuple):
    """A layout of GPUs, the most tokens that it holds, and its time."""

    group: Group
    rates: Rates
    """Seconds of a micro-batch on one stage: per squared token, per token, and constant."""

    def dominates(self, other: Scheme) -> bool:
        """Whether it holds as much in no more time, on GPUs that divide the other's."""
        return (
            other.group.num_gpus % self.group.num_gpus == 0
            and self.group.capacity >= other.group.capacity
            and self.group.pp_size <= other.group.pp_size
            and all(own <= rate for own, rate in zip(self.rates, other.rates, strict=True))
        )


def find_schemes(
    longest: int, num_gpus: int, model: GpuModel, most: Layout | None, most_sp: int = 1
) -> tuple[Scheme, ...]:
    """Find all schemes worth having, by rising capacity, of equal ones the cheapest last. Price: milliseconds.

    Each layout comes without checkpointed layers, as long as that holds, and with the fewest that hold `longest`.

    Args:
        longest: tokens of the longest sample; no micro-batch is longer.
        most: greatest degrees; None: tp within a node, cp up to 8, and pp up to 8 stages.
        most_sp: greatest SP degree; above 1, all schemes without cp may have one.

    Raises:
        ConfigError: the model does not know tensor parallelism, or no scheme holds the longest sample.
    """
    model.cost.require_known(Layout(pp=2))
    found = []
    for layout in _layouts(num_gpus, model, most, most_sp):
        memory = model.memory
        whole = min(longest, memory.longest(layout, 0) // _ROW_MULTIPLE * _ROW_MULTIPLE)
        kept = [(whole, 0)] if whole >= min(longest, _LEAST_CAPACITY) else []
        if whole < longest:
            layers = memory.least_checkpoint_layers(longest, layout)
            held = longest if layers else min(longest, memory.longest(layout) // _ROW_MULTIPLE * _ROW_MULTIPLE)
            kept += [(held, layers or memory.num_layers)] if held >= min(longest, _LEAST_CAPACITY) else []
        for capacity, checkpoint_layers in kept:
            group = Group(capacity=capacity, checkpoint_layers=checkpoint_layers, **layout.sizes)
            found.append(Scheme(group, stage_rates(group, model)))
    worth = [
        scheme
        for i, scheme in enumerate(found)
        if not any(
            other.dominates(scheme) and (j < i or not scheme.dominates(other))
            for j, other in enumerate(found)
            if j != i
        )
    ]
    if max((scheme.group.capacity for scheme in worth), default=0) < longest:
        limits = "" if most is None else f" up to --parallel tp={most.tp},cp={most.cp},pp={most.pp}"
        raise ConfigError(
            f"--strategy hydraulis: no pipeline{limits} on {counted(num_gpus, 'GPU')} holds a sample of {longest:,} "
            "tokens in memory; give shorter --groups, higher --parallel degrees, or more GPUs"
        )
    return tuple(sorted(worth, key=lambda scheme: (scheme.group.capacity, -_gpu_seconds(scheme, longest))))


def _layouts(num_gpus: int, model: GpuModel, most: Layout | None, most_sp: int) -> list[Layout]:
    assert model.cost.model_parallel is not None
    limit = most or Layout(tp=model.cost.model_parallel.gpus_per_node, cp=MOST_CP, pp=MOST_STAGES)
    node, layers = model.cost.model_parallel.gpus_per_node, model.memory.num_layers
    most_gpus = num_gpus if model.cost.model_parallel.network_bandwidth else min(num_gpus, node)
    powers = [2**power for power in range(num_gpus.bit_length())]
    of_rows = [(1, cp) for cp in powers if cp <= limit.cp] + [(sp, 1) for sp in powers if 1 < sp <= most_sp]
    return [
        Layout(sp=sp, cp=cp, tp=tp, pp=pp)
        for tp in powers
        if tp <= limit.tp and node % tp == 0
        for sp, cp in of_rows
        if sp * tp in model.sp_sizes  # Both distribute the heads.
        for pp in range(1, limit.pp + 1)
        if layers % pp == 0 and sp * cp * tp * pp <= most_gpus
    ]


def _gpu_seconds(scheme: Scheme, tokens: int) -> float:
    quadratic, linear, constant = scheme.rates
    return scheme.group.num_gpus * (quadratic * tokens * tokens + linear * tokens + constant)


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
