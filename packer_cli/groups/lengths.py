"""The lengths to train on as running sums, so that any range of them costs two look-ups."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray


class LengthSums:
    """Samples, tokens and attention work of all lengths up to some length.

    O(n) once, for lengths of up to 16M tokens, then O(log u) a look-up, for u different lengths.
    """

    def __init__(self, lengths: ArrayLike) -> None:
        """Of lengths, int[n], each at least 1."""
        self.lengths, counts = _count(np.asarray(lengths))
        """int64[u]: the different lengths, rising."""
        tokens = counts * self.lengths
        # Floats: the work of a billion long samples is beyond int64.
        sums = [np.cumsum(each, dtype=np.float64) for each in (counts, tokens, tokens * self.lengths.astype(float))]
        self._sums = np.concatenate([np.zeros((3, 1)), np.array(sums).reshape(3, -1)], axis=1)

    @property
    def longest(self) -> int:
        """Tokens of the longest sample; 0 where there is none."""
        return int(self.lengths[-1]) if len(self.lengths) else 0

    @property
    def num_samples(self) -> int:
        """All of them."""
        return int(self._sums[0, -1])

    @property
    def num_tokens(self) -> int:
        """Of all samples."""
        return int(self._sums[1, -1])

    def up_to(self, length: ArrayLike) -> NDArray[np.float64]:
        """(samples, tokens, sum of s^2) of the samples of at most this length, float64[3, ...]."""
        return self._sums[:, np.searchsorted(self.lengths, length, side="right")]

    def longest_up_to(self, length: ArrayLike) -> NDArray[np.int64]:
        """The longest length that is at most this; 0 where there is none."""
        return np.append(0, self.lengths)[np.searchsorted(self.lengths, length, side="right")]

    def shortest_over(self, length: ArrayLike) -> NDArray[np.int64]:
        """The shortest length that is longer than this; 0 where there is none."""
        return np.append(self.lengths, 0)[np.searchsorted(self.lengths, length, side="right")]

    def density_up_to(self, length: int) -> float:
        """Attention work a token of the samples of at most this length; of one such sample where there is none."""
        _, tokens, work = self.up_to(length)
        return float(work / tokens) if tokens else float(length)


_MOST_COUNTED = 2**24
_AT_ONCE = 2**22


def _count(lengths: NDArray[np.integer]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The different lengths, rising, and how many there are of each, int64[u]."""
    longest = int(lengths.max(initial=0))
    if longest > _MOST_COUNTED:
        found, counts = np.unique(lengths.astype(np.int64), return_counts=True)
        return found, counts
    counts = np.zeros(longest + 1, dtype=np.int64)
    # In parts: counting makes a copy of what it counts, twice as wide.
    for first in range(0, len(lengths), _AT_ONCE):
        part = np.bincount(lengths[first : first + _AT_ONCE])
        counts[: len(part)] += part
    found = np.flatnonzero(counts)
    return found, counts[found]
