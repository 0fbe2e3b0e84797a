"""Thresholds of the delay queues, tuned on a sample of the data (WLB-LLM, arXiv 2503.17924, section 4.2).

The paper does not print its search. Ours is a grid: lengths from which documents hold a given share of the tokens, all
sets of one to three of them. Queues narrower in length even out better and fill more slowly, so documents wait longer.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

import numpy as np

from packer_cli.plan.core.types import Int64Array
from packer_cli.plan.strategies.wlb.arrival import Arrivals
from packer_cli.plan.strategies.wlb.delay import pack_with_queues
from packer_cli.plan.strategies.wlb.steps import imbalances, mean_delay

MOST_QUEUES = 3
_SHARES = (0.5, 0.4, 0.33, 0.27, 0.22, 0.18, 0.14, 0.1, 0.07, 0.04, 0.02)
"""Of the tokens, in documents at least as long as a threshold to try."""
_SAMPLE = 30_000
"""Documents of the sample, if that makes `_SAMPLE_BATCHES`."""
_SAMPLE_BATCHES = 64


def tune_thresholds(arrivals: Arrivals, capacity: int, most_delay: float, num_queues: int | None = None) -> Int64Array:
    """The thresholds (int64[n], rising) of least mean imbalance whose mean delay is bounded.

    Price: about 230 plans of the first 30,000 documents, or 64 batches if that is more: half a second where a step has
    a few micro-batches, in proportion to their number above that. A sample of few batches tells little about the
    longest documents, which are rare.

    Args:
        capacity: most tokens of a micro-batch.
        most_delay: steps, on average over tokens. If no thresholds stay below it, those of least delay are taken, or
            none where the number of queues is free.
        num_queues: n, at most `MOST_QUEUES`; None for the best of 0 to `MOST_QUEUES`.
    """
    num_batches = max(_SAMPLE_BATCHES, int(np.searchsorted(arrivals.batches, _SAMPLE)))
    sample = arrivals.first(min(num_batches, arrivals.num_batches))
    best, least = np.empty(0, dtype=np.int64), (np.inf, np.inf)
    if not sample.num_batches:
        return best
    for thresholds in _candidates(sample, num_queues):
        packed = pack_with_queues(sample, capacity, thresholds)
        delay = mean_delay(sample, packed)
        of_steps = imbalances(sample, packed)
        if sample.num_batches < arrivals.num_batches:  # Steps after a sample's last batch only clear its queues.
            of_steps = of_steps[: int(packed.arrival[-1]) + 1]
        found = (max(0.0, delay - most_delay), float(of_steps.mean()))
        if found < least:
            best, least = thresholds, found
    return best


def _candidates(sample: Arrivals, num_queues: int | None) -> Iterator[Int64Array]:
    falling = np.sort(sample.lengths)[::-1]
    share = np.cumsum(falling, dtype=np.int64) / int(falling.sum(dtype=np.int64))
    lengths = np.unique(falling[np.searchsorted(share, _SHARES)])
    numbers = range(MOST_QUEUES + 1) if num_queues is None else [min(num_queues, len(lengths))]
    for number in numbers:
        for chosen in combinations(lengths.tolist(), number):
            yield np.array(chosen, dtype=np.int64)
