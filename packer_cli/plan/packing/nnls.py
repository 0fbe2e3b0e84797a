"""Non-negative least squares for sparse columns: the active set method of Lawson and Hanson.

Source: Lawson and Hanson 1974, chapter 23. The normal equations of the p columns in use are kept as a Cholesky factor;
adding or removing a column takes O(p^2). The solution uses at most as many columns as there are rows, so rounding it
to integers costs little.
"""

from __future__ import annotations

from typing import cast

import numpy as np
from numba import njit
from numpy.typing import NDArray

_ZERO, _NONE = cast(int, np.int64(0)), cast(int, np.int64(-1))
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
