"""Non-negative least squares histogram packing: how often to use each way of filling a pack with few samples.

Source: Krell et al., arXiv 2107.02027, section 3 and appendix (NNLSHP). A *strategy* is a set of at most `depth`
lengths that fills a pack. Least squares choose how often to use each strategy, so that together they use up the
histogram; residuals of the shortest lengths weigh little. Price: seconds for the least squares, which see only the
histogram (about 22,000 strategies of 512 lengths); O(n) for the rest. Use it if many samples are over a third of the
capacity and you want few samples per pack: with three each, 99.7 % of the tokens of BERT's packs are real.
Do not use it if most samples are short against the capacity: no three of them fill a pack, so there are no strategies
to use, and the result is `bfd`'s packing at a higher price.

Unlike in the paper, a strategy is used only as often as it finds all its samples, so no pack is opened and left empty,
and best-fit by decreasing length puts the other samples into the gaps and into new packs. Lengths need not fill a pack
to the token: the last of a strategy is the longest that fits, and a hundredth may stay free.

The least squares are the active set method of Lawson and Hanson (1974, chapter 23). The normal equations of the p
columns in use are kept as a Cholesky factor; adding or removing a column takes O(p^2). The solution uses at most as
many columns as there are rows, so rounding it to integers costs little.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import numpy as np
from numba import njit
from numpy.typing import NDArray

from packer_cli.plan.core.csr import argsort_descending
from packer_cli.plan.core.types import Int32Array, Int64Array
from packer_cli.plan.packing.base import PackingAlgorithm, PackingOptions
from packer_cli.plan.packing.patterns import pack_patterns

_MOST_BUCKETS = {1: 2048, 2: 2048, 3: 1024, 4: 512}
"""Most buckets at each depth: at most a million strategies, which take about 20 seconds."""
_FREE = 100
"""A strategy may leave capacity / _FREE free."""
_SHORT, _SHORT_WEIGHT = 64, 0.09
"""Lengths up to capacity / _SHORT, 8 of 512 in the paper, and the weight of their residuals; others weigh 1."""


@dataclass(frozen=True, kw_only=True)
class NnlshpOptions(PackingOptions):
    """Greater values take longer and leave less to best-fit."""

    depth: int = 3
    """Most samples of a strategy, not counting those that best-fit adds to its packs."""
    buckets: int = 512
    """Most distinct lengths: a greater capacity is divided into at most this many, and lengths are rounded up."""
    iterations: int = 3000
    """Most iterations of the least squares, one strategy each; they usually converge after about 1000."""

    def __post_init__(self) -> None:
        if not 1 <= self.depth <= 4:
            raise ValueError(f"option 'depth' of packing 'nnlshp' must be in 1..4, got {self.depth}")
        most = _MOST_BUCKETS[self.depth]
        if not 1 <= self.buckets <= most:
            raise ValueError(
                f"option 'buckets' of packing 'nnlshp' must be in 1..{most} with depth={self.depth}, "
                f"got {self.buckets}"
            )
        if not 1 <= self.iterations < 2**31:
            raise ValueError(
                f"option 'iterations' of packing 'nnlshp' must be in 1..{2**31 - 1}, got {self.iterations}"
            )


def pack(lengths: Int32Array, capacity: int, seed: int, options: NnlshpOptions) -> tuple[Int64Array, Int32Array]:
    """See the package for shapes."""
    order = argsort_descending(lengths)
    sizes, counts, room = _buckets(lengths, capacity, options.buckets)
    strategies = _strategies(sizes, room, room // _FREE, options.depth)
    weights = np.where(sizes <= room // _SHORT, _SHORT_WEIGHT**2, 1.0)
    use = np.rint(nnls(strategies, weights, counts.astype(np.float64), options.iterations)).astype(np.int64)
    chosen, use = _limit_to_samples(strategies, use, counts)
    patterns = np.zeros((len(chosen), len(sizes)), dtype=np.int32)
    for d in range(options.depth):
        has_sample = chosen[:, d] >= 0
        np.add.at(patterns, (np.flatnonzero(has_sample), chosen[has_sample, d]), 1)
    # Buckets are in increasing order, samples in decreasing order.
    class_starts = np.concatenate([[0], np.cumsum(counts[::-1])])
    return pack_patterns(lengths, order, capacity, class_starts, np.ascontiguousarray(patterns[:, ::-1]), use)


def _buckets(lengths: Int32Array, capacity: int, most: int) -> tuple[Int64Array, Int64Array, int]:
    """`(sizes int64[m], counts int64[m], room)`: increasing sizes, in units of which `room` fill a pack."""
    unit = -(-capacity // most)
    room = capacity // unit
    # Rounding up must not push a sample of nearly the whole capacity over it.
    counts = np.bincount(np.minimum(-(-lengths // unit), room), minlength=room + 1)
    sizes = np.flatnonzero(counts)
    return sizes, counts[sizes], room


@njit(cache=True)
def _strategies(sizes: NDArray[np.int64], room: int, free: int, depth: int) -> NDArray[np.int32]:
    """Every set of at most `depth` sizes that leaves at most `free`, and whose least size is the greatest that fits.

    Args:
        sizes: int64[m], increasing.

    Returns:
        int32[k, depth]: distinct rows of indices into `sizes`, decreasing, padded with -1.
    """
    greatest = np.full(room + 1, -1, dtype=np.int64)  # index of the greatest size <= r
    for i in range(len(sizes)):
        greatest[sizes[i]] = i
    for r in range(1, room + 1):
        if greatest[r] < 0:
            greatest[r] = greatest[r - 1]
    found = np.empty((0, depth), dtype=np.int32)
    choice = np.empty(depth, dtype=np.int64)
    first = np.empty(depth, dtype=np.int64)
    rest = np.empty(depth, dtype=np.int64)
    for is_written in (False, True):  # once to count them
        num = 0
        level = 0
        rest[0] = room
        first[0] = choice[0] = greatest[room]
        while level >= 0:
            i = choice[level]
            # Even `depth - level` samples of this size or smaller would leave too much free.
            if i < 0 or rest[level] > (depth - level) * sizes[i] + free:
                level -= 1
                continue
            after = rest[level] - sizes[i]
            choice[level] = i - 1 if level < depth - 1 else -1
            if after <= free and i == first[level]:
                if is_written:
                    for d in range(depth):
                        found[num, d] = -1
                    for d in range(level):
                        found[num, d] = choice[d] + 1
                    found[num, level] = i
                num += 1
            if level < depth - 1:
                level += 1
                rest[level] = after
                first[level] = choice[level] = greatest[min(after, sizes[i])]
        if not is_written:
            found = np.empty((num, depth), dtype=np.int32)
    return found


def _limit_to_samples(strategies: Int32Array, use: Int64Array, counts: Int64Array) -> tuple[Int32Array, Int64Array]:
    """The strategies in use, most used first, each only as often as all its samples are there."""
    left = counts.copy()
    ranked = np.argsort(-use, kind="stable")[: np.count_nonzero(use)]
    times = np.zeros(len(ranked), dtype=np.int64)
    for k, strategy in enumerate(ranked):
        places, number = np.unique(strategies[strategy][strategies[strategy] >= 0], return_counts=True)
        times[k] = min(use[strategy], (left[places] // number).min())
        left[places] -= times[k] * number
    return strategies[ranked[times > 0]], times[times > 0]


ALGORITHM = PackingAlgorithm(
    name="nnlshp",
    summary="least squares histogram packing: few samples a pack",
    pack=pack,
    options=NnlshpOptions,
    bytes_a_sample=42,
)


_ZERO, _NONE = cast("int", np.int64(0)), cast("int", np.int64(-1))
"""Of int64, since numba compiles a function again for each Python literal passed to it."""


@njit(cache=True)
def nnls(
    columns: NDArray[np.int32], weights: NDArray[np.float64], target: NDArray[np.float64], most_rounds: int
) -> NDArray[np.float64]:
    """x float64[k] >= 0 that minimises the weighted sum of squares of `target - A x`.

    Args:
        columns: int32[k, d], the rows where each column of A has a 1; a row listed twice means 2, and -1 no row.
        weights: float64[m], over 0: the weight of each row's square.
        target: float64[m].
        most_rounds: columns to try; with too few, x is valid but not the minimum.
    """
    num, depth = columns.shape
    rows = len(target)
    x = np.zeros(num)
    is_used = np.zeros(num, dtype=np.bool_)
    is_tried = np.zeros(num, dtype=np.bool_)
    used = np.empty(rows + 1, dtype=np.int64)
    factor = np.zeros((rows + 1, rows + 1))
    goal = np.empty(rows + 1)
    best = np.empty(rows + 1)
    size = _ZERO
    residual = target.copy()
    largest = 0.0
    for i in range(rows):
        largest = max(largest, weights[i] * abs(target[i]))
    for _ in range(most_rounds):
        # The column of steepest descent.
        entering = _NONE
        steepest = 1e-9 * largest
        for j in range(num):
            if not is_used[j] and not is_tried[j]:
                slope = 0.0
                for d in range(depth):
                    if columns[j, d] >= 0:
                        slope += weights[columns[j, d]] * residual[columns[j, d]]
                if slope > steepest:
                    steepest = slope
                    entering = j
        if entering < 0:
            break
        if size == rows or not _append(factor, size, columns, used, entering, weights):
            is_tried[entering] = True  # It depends on those in use.
            continue
        used[size] = entering
        is_used[entering] = True
        goal[size] = 0.0
        for d in range(depth):
            if columns[entering, d] >= 0:
                goal[size] += weights[columns[entering, d]] * target[columns[entering, d]]
        size += 1
        while True:
            _solve(factor, size, goal, best)
            # Move towards the minimum over these columns until one of them would become negative.
            step = 1.0
            for q in range(size):
                if best[q] <= 0:
                    step = min(step, x[used[q]] / (x[used[q]] - best[q]) if x[used[q]] > 0 else 0.0)
            is_whole = True
            for q in range(size - 1, -1, -1):
                j = used[q]
                value = x[j] + step * (best[q] - x[j])
                if best[q] <= 0 and value <= 1e-12 * (1 + abs(best[q])):
                    is_whole = False
                    x[j] = 0.0
                    is_used[j] = False
                    is_tried[j] = True  # Otherwise it might come back at once.
                    _remove(factor, size, q)
                    size -= 1
                    for below in range(q, size):
                        used[below] = used[below + 1]
                        goal[below] = goal[below + 1]
                        best[below] = best[below + 1]
                else:
                    x[j] = value
            if is_whole:
                break
        squares = 0.0
        for i in range(rows):
            squares += weights[i] * residual[i] ** 2
            residual[i] = target[i]
        for q in range(size):
            for d in range(depth):
                if columns[used[q], d] >= 0:
                    residual[columns[used[q], d]] -= x[used[q]]
        for i in range(rows):
            squares -= weights[i] * residual[i] ** 2
        if squares > 0:
            is_tried[:] = False
    return x


@njit(cache=True)
def _append(
    factor: NDArray[np.float64],
    size: int,
    columns: NDArray[np.int32],
    used: NDArray[np.int64],
    entering: int,
    weights: NDArray[np.float64],
) -> bool:
    """Add a row to the Cholesky factor; False where the column depends on the others."""
    depth = columns.shape[1]
    row = factor[size]
    for q in range(size):
        row[q] = 0.0
        for d in range(depth):
            for e in range(depth):
                if columns[entering, d] >= 0 and columns[entering, d] == columns[used[q], e]:
                    row[q] += weights[columns[entering, d]]
    length = 0.0
    for d in range(depth):
        for e in range(depth):
            if columns[entering, d] >= 0 and columns[entering, d] == columns[entering, e]:
                length += weights[columns[entering, d]]
    rest = length
    for q in range(size):
        value = row[q]
        for below in range(q):
            value -= factor[q, below] * row[below]
        row[q] = value / factor[q, q]
        rest -= row[q] ** 2
    if rest <= 1e-8 * length:
        return False
    row[size] = np.sqrt(rest)
    return True


@njit(cache=True)
def _solve(factor: NDArray[np.float64], size: int, goal: NDArray[np.float64], answer: NDArray[np.float64]) -> None:
    """Write the solution to `answer`, by forward and back substitution."""
    for q in range(size):
        value = goal[q]
        for below in range(q):
            value -= factor[q, below] * answer[below]
        answer[q] = value / factor[q, q]
    for q in range(size - 1, -1, -1):
        answer[q] /= factor[q, q]
        for below in range(q):
            answer[below] -= factor[q, below] * answer[q]


@njit(cache=True)
def _remove(factor: NDArray[np.float64], size: int, gone: int) -> None:
    """Remove row `gone` from the Cholesky factor, and make it triangular again by Givens rotations."""
    for q in range(gone, size - 1):
        for below in range(q + 2):
            factor[q, below] = factor[q + 1, below]
    for q in range(gone, size - 1):
        diagonal = factor[q, q]
        beside = factor[q, q + 1]
        length = np.hypot(diagonal, beside)
        cosine, sine = diagonal / length, beside / length
        for above in range(q, size - 1):
            first, second = factor[above, q], factor[above, q + 1]
            factor[above, q] = cosine * first + sine * second
            factor[above, q + 1] = cosine * second - sine * first
