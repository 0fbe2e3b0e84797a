"""Finds samples of the lengths that were chosen for packs, in order, without sorting."""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray


def pick_samples(
    chosen: NDArray[np.int32], lengths: NDArray[np.int32], is_left: NDArray[np.bool_], longest: int
) -> NDArray[np.int32]:
    """A candidate (int32[a]) for each chosen length: the k-th choice of a length gets its k-th candidate.

    O(n + a + longest); it stops when all are found.
    """
    begin = np.concatenate([[0], np.cumsum(np.bincount(chosen, minlength=longest + 1))])
    found, samples = (np.empty(len(chosen), dtype=np.int32) for _ in range(2))
    _find(lengths, is_left, begin, begin[:-1].copy(), found)
    _in_order(chosen, begin[:-1].copy(), found, samples)
    return samples


@njit(cache=True)
def _find(
    lengths: NDArray[np.int32],
    is_left: NDArray[np.bool_],
    begin: NDArray[np.int64],
    place: NDArray[np.int64],
    found: NDArray[np.int32],
) -> None:
    """Write the first candidates of each length to `found`, by length; `place` is the next index of each length."""
    num_found = 0
    for i in range(len(lengths)):
        if num_found == len(found):
            break
        length = lengths[i]
        if is_left[i] and place[length] < begin[length + 1]:
            found[place[length]] = i
            place[length] += 1
            num_found += 1


@njit(cache=True)
def _in_order(
    chosen: NDArray[np.int32], place: NDArray[np.int64], found: NDArray[np.int32], samples: NDArray[np.int32]
) -> None:
    """Write the next found candidate for each chosen length in turn."""
    for j in range(len(chosen)):
        samples[j] = found[place[chosen[j]]]
        place[chosen[j]] += 1
