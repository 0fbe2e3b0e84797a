"""The least time in which a pipeline could run samples, from their sums alone: what stage 1 and stage 2 search by."""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray


@njit(cache=True)
def least_pipeline_seconds(
    rates: NDArray[np.float64], capacity: NDArray[np.int64], kind: int, work: int, tokens: int, longest: int, num: int
) -> float:
    """No division of the samples into micro-batches is faster, and most are hardly slower. O(1).

    With v micro-batches of total cost S, without constants, of which the costliest sample takes x, the pipeline takes
    at least `S + v c + (pp - 1) (max(S / v, x) + c)`. That is least at v = S / x, or before it at
    `sqrt((pp - 1) S / c)`, within `ceil(tokens / capacity) <= v <= num`. See also `SchemeCosts.enough`.

    Args:
        rates, capacity: of `SchemeCosts.arrays`.
        kind: the pipeline's scheme.
        work, tokens, longest, num: sum of s^2, sum of s, greatest s, and number of the samples.
    """
    if num == 0:
        return 0.0
    quadratic, linear, constant, waiting = rates[0, kind], rates[1, kind], rates[2, kind], rates[3, kind]
    total = quadratic * work + linear * tokens
    fewest = -(-tokens // capacity[kind])
    if waiting == 0.0:
        return total + fewest * constant
    alone = (quadratic * longest + linear) * longest
    best = total / alone
    if constant > 0.0:
        best = min(best, np.sqrt(waiting * total / constant))
    least = np.inf
    most = max(fewest, min(num, int(tokens / rates[4, kind])))
    for near in range(2):
        v = min(max(int(best) + near, fewest), most)
        least = min(least, total + v * constant + waiting * (max(total / v, alone) + constant))
    return least
