"""Balance batching: iterations of packs with nearly equal work (HBP, algorithm 7; see `plan.core.cost` for work).

The packs of a group are sorted by work, and consecutive packs form an iteration. Price: O(p log p). A
global sort puts similar packs together, which costs randomness; sorting within random windows of a few iterations
keeps more of it. The order of the iterations is shuffled afterwards.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from packer_cli.plan.core.streams import shuffle
from packer_cli.plan.core.types import Int32Array, Int64Array
from packer_cli.plan.kernels.balance.rule import BalanceRule


def order_packs(work: Int64Array, num_ranks: int, rule: BalanceRule, state: NDArray[np.uint64]) -> Int32Array:
    """The order (int32[p]) in which packs form iterations of `num_ranks`; equal ones in seeded order.

    Within each window the heaviest come first; windows are cut from a seeded order.
    """
    order = np.arange(len(work), dtype=np.int32)
    shuffle(order, state)
    if rule.window is None:
        return order
    if rule.window == 0:
        return order[np.argsort(-work[order], kind="stable")]
    number = np.arange(len(work)) // (rule.window * num_ranks)
    return order[np.lexsort((-work[order], number))]
