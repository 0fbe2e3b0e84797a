"""Steps as Hydraulis trains them: samples in a seeded order, cut into global batches of so many tokens.

The paper truncates the last sample of a batch; here it opens the next one, so that no token is lost.
"""

from __future__ import annotations

import numpy as np

from packer_cli.plan.core.streams import Stream, rng_state, shuffled
from packer_cli.plan.core.types import Int32Array, Int64Array


def make_batches(lengths: Int32Array, batch_tokens: int, seed: int) -> tuple[Int32Array, Int64Array]:
    """`(order int32[n], offsets int64[b+1])`: batch j holds `order[offsets[j]:offsets[j+1]]`, longest samples first.

    Args:
        lengths: int32[n], tokens.
        batch_tokens: most tokens of a batch; a longer sample is a batch of its own.

    >>> order, offsets = make_batches(np.array([3, 3, 3, 9], dtype=np.int32), 6, seed=1)
    >>> [np.array([3, 3, 3, 9])[order[a:b]].tolist() for a, b in zip(offsets, offsets[1:])]
    [[3], [9], [3, 3]]
    """
    order = shuffled(len(lengths), rng_state(seed, Stream.ORDER))
    ends = np.cumsum(lengths[order], dtype=np.int64)
    offsets = [0]
    while offsets[-1] < len(order):
        before = int(ends[offsets[-1] - 1]) if offsets[-1] else 0
        offsets.append(max(offsets[-1] + 1, int(np.searchsorted(ends, before + batch_tokens, side="right"))))
    batch = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
    return order[np.lexsort((-lengths[order].astype(np.int64), batch))], np.array(offsets)
