"""Least squares with coefficients that cannot be negative, and their standard errors. Pure numpy."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def solve_nonnegative(features: Floats, values: Floats) -> Floats:
    """The x >= 0 with the least `|features @ x - values|`.

    Args:
        features: float64 [n, k]; columns may have any scale, and may be linearly dependent.
        values: float64 [n].

    Returns:
        float64 [k].

    Source: Lawson and Hanson, Solving Least Squares Problems (1974), section 23.3. Price: about k solutions of k
    unknowns.
    """
    scale = np.linalg.norm(features, axis=0)
    scale[scale == 0] = 1.0
    matrix = features / scale
    num = matrix.shape[1]
    x = np.zeros(num)
    free = np.zeros(num, dtype=bool)
    tolerance = 1e-12 * max(1.0, float(np.linalg.norm(values)))
    for _ in range(10 * num):
        gradient = matrix.T @ (values - matrix @ x)
        gradient[free] = -np.inf
        best = int(np.argmax(gradient))
        if free.all() or gradient[best] <= tolerance:
            break
        free[best] = True
        while True:
            trial = np.zeros(num)
            trial[free] = np.linalg.lstsq(matrix[:, free], values, rcond=None)[0]
            negative = free & (trial < 0)
            if not negative.any():
                break
            step = np.min(x[negative] / (x[negative] - trial[negative]))
            x += step * (trial - x)
            # Variables that reached 0 leave the free set, whatever the rounding.
            gone = negative & (x <= 1e-15)
            gone |= negative & (x == x[negative].min())
            free[gone] = False
            x[~free] = 0.0
        x = trial
    return x / scale


def standard_errors(jacobian: Floats, residuals: Floats) -> Floats:
    """Standard errors of the coefficients of a least-squares fit; infinite for those that the rows do not determine.

    Args:
        jacobian: float64 [n, k], derivatives of the residuals.
        residuals: float64 [n].

    Returns:
        float64 [k]; all infinite if there are no more rows than coefficients.

    Source: the usual `s^2 (J^T J)^-1`. Price: one singular value decomposition.
    """
    num_rows, num = jacobian.shape
    if num_rows <= num:
        return np.full(num, np.inf)
    scale = np.linalg.norm(jacobian, axis=0)
    scale[scale == 0] = 1.0
    _, singular, directions = np.linalg.svd(jacobian / scale, full_matrices=False)
    determined = singular > 1e-9 * singular[0]
    variance = float(residuals @ residuals) / (num_rows - num)
    inverse = np.divide(1.0, singular, out=np.zeros_like(singular), where=determined)
    errors: Floats = np.sqrt(variance * ((directions.T * inverse) ** 2).sum(axis=1)) / scale
    undetermined = (np.abs(directions[~determined]) > 1e-6).any(axis=0)
    errors[undetermined] = np.inf
    return errors
