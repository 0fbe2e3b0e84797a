"""No packing, a baseline: one sample a pack.

Source: padded batches, as in a trainer that does not pack. Price: O(n), two ranges. Use it to see what packing gains,
or if a trainer cannot separate the samples of a row. Do not use it otherwise: all the rest of a row is padding.
"""

from __future__ import annotations

import numpy as np

from packer_cli.plan.core.types import Int32Array, Int64Array
from packer_cli.plan.packing.base import PackingAlgorithm, PackingOptions


def pack(lengths: Int32Array, capacity: int, seed: int, options: PackingOptions) -> tuple[Int64Array, Int32Array]:
    """Put each sample into a pack of its own; see the package for shapes."""
    return np.arange(len(lengths) + 1, dtype=np.int64), np.arange(len(lengths), dtype=np.int32)


ALGORITHM = PackingAlgorithm(name="none", summary="baseline: one sample a pack", pack=pack, bytes_a_sample=180)
