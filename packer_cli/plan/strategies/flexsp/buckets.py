"""Length buckets with the least rounding: FlexSP (arXiv 2412.01523), section 4.1.

A bucket counts each of its samples at the length of its longest, so that an integer program need not tell them apart.
With lengths s_1 <= .. <= s_K, `err[k][q] = min over j < k of err[j][q-1] + sum over j < i <= k of (s_k - s_i)`.

The paper's recurrence takes O(K^2 Q). Here K counts distinct lengths, sums come from prefix sums, and the best cut j
never decreases with k (the cost of a bucket satisfies the quadrangle inequality), so each layer is solved by divide
and conquer. Price: O(n + Q K log K); 0.1 s for all lengths up to 128K in 16 buckets.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from packer_cli.plan.core.types import Int32Array, Int64Array


class Buckets(NamedTuple):
    """At most q buckets of similar lengths, shortest first."""

    longest: Int32Array
    """int32[b]: the length that each sample of the bucket counts as."""
    samples: Int64Array
    """int64[b]: how many samples the bucket has."""
    error: int
    """Tokens that rounding adds, summed over the samples; no other q buckets add fewer."""


def make_buckets(lengths: NDArray[np.integer], num_buckets: int) -> Buckets:
    """Divide the lengths (int[n]) into at most `num_buckets` buckets; fewer if there are fewer distinct lengths.

    `searchsorted(longest, length)` is the bucket of a length.

    >>> make_buckets(np.array([1, 2, 9, 9, 10]), 2)
    Buckets(longest=array([ 2, 10], dtype=int32), samples=array([2, 3]), error=3)

    Raises:
        ValueError: `num_buckets` is below 1.
    """
    if num_buckets < 1:
        raise ValueError(f"the number of buckets must be at least 1, got {num_buckets}")
    length, number = np.unique(lengths, return_counts=True)
    num_buckets = min(num_buckets, len(length))
    count_to = np.concatenate([[0], np.cumsum(number, dtype=np.int64)])
    tokens_to = np.concatenate([[0], np.cumsum(number * length.astype(np.int64))])
    if not num_buckets:
        return Buckets(length.astype(np.int32), number.astype(np.int64), 0)
    cuts = np.zeros((num_buckets, len(length) + 1), dtype=np.int64)
    error = _cut(length.astype(np.int64), count_to, tokens_to, cuts)
    ends = [len(length)]
    for cut in cuts[:0:-1]:
        ends.append(int(cut[ends[-1]]))
    stop = np.array(ends[::-1])
    return Buckets(length[stop - 1].astype(np.int32), np.diff(count_to[stop], prepend=0), int(error))


@njit(cache=True)
def _cut(
    length: NDArray[np.int64], count_to: NDArray[np.int64], tokens_to: NDArray[np.int64], cuts: NDArray[np.int64]
) -> int:
    """Write to `cuts[q][k]` how many of the k shortest distinct lengths are in the first q buckets of q + 1.

    Returns the least error. Needs at least as many lengths as buckets.
    """
    num = len(length)
    before = np.zeros(num + 1, dtype=np.int64)
    for k in range(1, num + 1):
        before[k] = length[k - 1] * count_to[k] - tokens_to[k]
    error = before.copy()
    # Ranges of k that wait, each with the range of cuts: the middle k is solved, and divides both.
    waiting = np.empty((128, 4), dtype=np.int64)
    for q in range(1, len(cuts)):
        top = 1
        _put(waiting[0], q + 1, num, q, num - 1)
        while top:
            top -= 1
            first, last, low, high = waiting[top]
            k = (first + last) // 2
            best, cut = np.int64(-1), low
            for j in range(low, min(high, k - 1) + 1):
                added = before[j] + length[k - 1] * (count_to[k] - count_to[j]) - (tokens_to[k] - tokens_to[j])
                if best < 0 or added < best:
                    best, cut = added, j
            error[k], cuts[q, k] = best, cut
            if k < last:
                _put(waiting[top], k + 1, last, cut, high)
                top += 1
            if first < k:
                _put(waiting[top], first, k - 1, low, cut)
                top += 1
        before = error.copy()
    return error[num]


@njit(cache=True, no_cpython_wrapper=True)
def _put(row: NDArray[np.int64], first: int, last: int, low: int, high: int) -> None:
    """`row[:] = first, last, low, high`, which takes seconds to compile, see `dealing.copy_to`."""
    row[0], row[1], row[2], row[3] = first, last, low, high
