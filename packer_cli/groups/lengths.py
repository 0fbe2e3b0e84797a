"""Running sums over the training lengths: two look-ups give the sums of any range."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray


class LengthSums:
    """Number of samples, tokens and attention work of all samples up to a given length.

    Price: O(n) once for lengths up to 16M tokens, then O(log u) per look-up, for u different lengths.
    """

    def __init__(self, lengths: ArrayLike) -> None:
        """Args: lengths, int[n], each at least 1."""
        self.lengths, counts = _count(np.asarray(lengths))
        """int64[u]: the different lengths, increasing."""
        tokens = counts * self.lengths
        # Floats, since the work of a billion long samples exceeds int64.
        sums = [np.cumsum(each, dtype=np.float64) for each in (counts, tokens, tokens * self.lengths.astype(float))]
        self._sums = np.concatenate([np.zeros((3, 1)), np.array(sums).reshape(3, -1)], axis=1)

    @property
    def longest(self) -> int:
        """Tokens of the longest sample; 0 if there are no samples."""
        return int(self.lengths[-1]) if len(self.lengths) else 0

    @property
    def num_samples(self) -> int:
        """Number of samples."""
        return int(self._sums[0, -1])

    @property
    def num_tokens(self) -> int:
        """Tokens of all samples."""
        return int(self._sums[1, -1])

    def up_to(self, length: ArrayLike) -> NDArray[np.float64]:
        """(samples, tokens, sum of s^2) of the samples of at most this length, float64[3, ...]."""
        return self._sums[:, np.searchsorted(self.lengths, length, side="right")]

    def longest_up_to(self, length: ArrayLike) -> NDArray[np.int64]:
        """The longest length of at most `length`; 0 if there is none."""
        return np.append(0, self.lengths)[np.searchsorted(self.lengths, length, side="right")]

    def shortest_over(self, length: ArrayLike) -> NDArray[np.int64]:
        """The shortest length over `length`; 0 if there is none."""
        return np.append(self.lengths, 0)[np.searchsorted(self.lengths, length, side="right")]

    def density_up_to(self, length: int) -> float:
        """Attention work per token of the samples up to `length`; if there are none, of one sample of that length."""
        _, tokens, work = self.up_to(length)
        return float(work / tokens) if tokens else float(length)


_MOST_COUNTED = 2**24
_AT_ONCE = 2**22


def _count(lengths: NDArray[np.integer]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The different lengths, increasing, and the number of samples of each; both int64[u]."""
    longest = int(lengths.max(initial=0))
    if longest > _MOST_COUNTED:
        found, counts = np.unique(lengths.astype(np.int64), return_counts=True)
        return found, counts
    counts = np.zeros(longest + 1, dtype=np.int64)
    # In parts, since bincount copies its input as int64.
    for first in range(0, len(lengths), _AT_ONCE):
        part = np.bincount(lengths[first : first + _AT_ONCE])
        counts[: len(part)] += part
    found = np.flatnonzero(counts)
    return found, counts[found]
