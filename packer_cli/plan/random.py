"""SplitMix64 for kernels: the same numbers on every machine and numba version.

Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014. A draw costs about a
nanosecond. Not for cryptography.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)


def rng_state(seed: int, *stream: int) -> NDArray[np.uint64]:
    """State (uint64[1]) for a seed and the numbers of a stream (purpose, group, epoch).

    >>> int(rng_state(0)[0]) != int(rng_state(0, 1)[0])
    True
    """
    return np.random.SeedSequence([seed & 0xFFFFFFFFFFFFFFFF, *stream]).generate_state(1, np.uint64).astype(np.uint64)


@njit(cache=True)
def next_uint64(state: NDArray[np.uint64]) -> np.uint64:
    """Advance the state and give 64 random bits."""
    state[0] += _GOLDEN
    z = state[0]
    z = (z ^ (z >> np.uint64(30))) * _MIX_1
    z = (z ^ (z >> np.uint64(27))) * _MIX_2
    return z ^ (z >> np.uint64(31))


@njit(cache=True)
def next_below(state: NDArray[np.uint64], bound: int) -> int:
    """A number in 0 .. bound-1, for bound < 2^32 (bias under bound / 2^32)."""
    return int(((next_uint64(state) >> np.uint64(32)) * np.uint64(bound)) >> np.uint64(32))


@njit(cache=True)
def shuffle(values: NDArray[np.int64], state: NDArray[np.uint64]) -> None:
    """Fisher-Yates in place. O(n)."""
    for i in range(len(values) - 1, 0, -1):
        j = next_below(state, i + 1)
        values[i], values[j] = values[j], values[i]


@njit(cache=True)
def shuffled(num: int, state: NDArray[np.uint64]) -> NDArray[np.int64]:
    """0 .. num-1 (int64[num]) in a random order. O(num)."""
    values = np.arange(num)
    shuffle(values, state)
    return values
