"""Balance batching: iterations of packs with nearly equal work (HBP, algorithm 7; see `plan.cost` for work).

The packs of a group are sorted by work, and consecutive packs form an iteration. Price: O(p log p). A
global sort puts alike packs together, and costs randomness; sorting inside random windows of a few iterations keeps
more of it. The order of the iterations is shuffled afterwards.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import njit
from numpy.typing import NDArray

from packer_cli.plan.streams import shuffle
from packer_cli.plan.types import Int64Array


@dataclass(frozen=True, kw_only=True)
class BalanceRule:
    """How packs come together in iterations."""

    window: int | None = 0
    """Iterations over which packs are sorted: 0 for all of them (HBP), None for no sorting at all."""
    refine: bool = False
    """Exchange samples between the packs of an iteration afterwards, see `plan.refine`."""


def parse_balance(text: str) -> BalanceRule:
    """Read `none`, `sort` or `window:K`, each with `+refine` or without; `refine` is `sort+refine`.

    >>> parse_balance("window:8+refine")
    BalanceRule(window=8, refine=True)

    Raises:
        ValueError: anything else; the message lists what is known.
    """
    order, plus, extra = text.partition("+")
    if order == "refine" and not plus:
        order, plus, extra = "sort", "+", "refine"
    kind, _, number = order.partition(":")
    known = {"none": None, "sort": 0}
    if (plus and extra != "refine") or (order not in known and kind != "window"):
        raise ValueError(f"unknown balance {text!r}; known: none, sort, window:K, each with +refine or without")
    if order in known:
        return BalanceRule(window=known[order], refine=bool(plus))
    is_number = number.isascii() and number.isdecimal() and len(number) <= 10
    if not is_number or not 1 <= int(number) < 2**31:
        raise ValueError(f"balance {text!r} needs a number of iterations, such as window:8")
    return BalanceRule(window=int(number), refine=bool(plus))


def order_packs(work: Int64Array, num_ranks: int, rule: BalanceRule, state: NDArray[np.uint64]) -> Int64Array:
    """Packs (int64[p]) in the order in which they form iterations of `num_ranks`; equal ones in seeded order.

    Inside each window the heaviest come first; windows are cut from a seeded order.
    """
    order = np.arange(len(work), dtype=np.int64)
    shuffle(order, state)
    if rule.window is None:
        return order
    if rule.window == 0:
        return order[np.argsort(-work[order], kind="stable")]
    number = np.arange(len(work)) // (rule.window * num_ranks)
    return order[np.lexsort((-work[order], number))]


def spread(
    lengths: NDArray[np.int32], order: NDArray[np.int64], capacity: int, num_rows: int, linear: int = 0
) -> tuple[NDArray[np.int64], bool]:
    """Deal samples over rows so that their work is even: the longest first, to the row of least work with room.

    It turns a group's last packs, too few for all ranks, into one lighter row for each rank. The rule is Graham's LPT
    with a capacity. O(n * rows).

    Args:
        lengths: int32[n]
        order: int64[n], the samples by falling length.
        capacity: most tokens of a row.
        num_rows: rows to fill.
        linear: tokens, see `Cost.linear_tokens`.

    Returns:
        `(row int64[n], fits)`; `fits` is False where some sample found no row, and `row` is then of no use.
    """
    row_of = np.full(len(lengths), -1, dtype=np.int64)
    tokens, work = np.zeros((2, num_rows), dtype=np.int64)
    return row_of, bool(_spread(lengths, order, capacity, linear, row_of, tokens, work))


@njit(cache=True)
def _spread(
    lengths: NDArray[np.int32],
    order: NDArray[np.int64],
    capacity: int,
    linear: int,
    row_of: NDArray[np.int64],
    tokens: NDArray[np.int64],
    work: NDArray[np.int64],
) -> bool:
    """Writes to `row_of`, and to `tokens` and `work` of each row, which are zeros."""
    for i in range(len(order)):
        sample = order[i]
        length = np.int64(lengths[sample])
        best = -1
        for row in range(len(work)):
            if tokens[row] + length <= capacity and (
                best < 0 or work[row] < work[best] or (work[row] == work[best] and tokens[row] < tokens[best])
            ):
                best = row
        if best < 0:
            return False
        row_of[sample] = best
        tokens[best] += length
        work[best] += length * (length + linear)
    return True
