"""Balance batching: iterations of packs with nearly equal work (HBP, algorithm 7; see `plan.core.cost` for work).

The packs of a group are sorted by work, and consecutive packs form an iteration. Price: O(p log p). A
global sort puts similar packs together, which costs randomness; sorting within random windows of a few iterations
keeps more of it. The order of the iterations is shuffled afterwards.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from packer_cli.jit import njit
from packer_cli.plan.core.groups import UNLIMITED
from packer_cli.plan.core.streams import shuffle
from packer_cli.plan.core.types import Int32Array, Int64Array


@dataclass(frozen=True, kw_only=True)
class BalanceRule:
    """Which packs share an iteration."""

    window: int | None = 0
    """Iterations per sorting window: 0 for all iterations (HBP), None for no sorting."""
    refine: bool = False
    """Exchange samples between the packs of an iteration afterwards, see `refine`."""


def parse_balance(text: str) -> BalanceRule:
    """Parse `none`, `sort` or `window:K`, each with or without `+refine`; `refine` is `sort+refine`.

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


def order_packs(work: Int64Array, num_ranks: int, rule: BalanceRule, state: NDArray[np.uint64]) -> Int32Array:
    """Order the packs (int32[p]) that form iterations of `num_ranks`; equal ones in seeded order.

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


def spread(
    lengths: Int32Array,
    own_work: Int64Array,
    order: Int32Array,
    capacity: int,
    num_rows: int,
    most: int = UNLIMITED,
    *,
    evens_tokens: bool = True,
) -> Int32Array:
    """Find the row (int32[n]) of each sample; -1 where none had room. O(n * rows).

    Args:
        lengths, own_work: [n], of each sample.
        order: int32[n], the samples by decreasing length.
        capacity: most tokens of a row.
        num_rows: rows to fill.
        most: most samples of a row.
        evens_tokens: of rows with equal work, take the one with the fewest tokens, and not the first.
    """
    row_of = np.full(len(lengths), -1, dtype=np.int32)
    tokens, work, number = np.zeros((3, num_rows), dtype=np.int64)
    _spread(lengths, own_work, order, capacity, most, evens_tokens, row_of, tokens, work, number)
    return row_of


@njit(cache=True)
def _spread(
    lengths: NDArray[np.int32],
    own_work: NDArray[np.int64],
    order: NDArray[np.int32],
    capacity: int,
    most: int,
    evens_tokens: bool,
    row_of: NDArray[np.int32],
    tokens: NDArray[np.int64],
    work: NDArray[np.int64],
    number: NDArray[np.int64],
) -> None:
    """Write to `row_of`, and each row's `tokens`, `work` and `number` of samples, zeros at first: the kernel."""
    for sample in order:
        length = np.int64(lengths[sample])
        best = -1
        for row in range(len(work)):
            if tokens[row] + length > capacity or number[row] >= most or (best >= 0 and work[row] > work[best]):
                continue
            if best < 0 or work[row] < work[best] or (evens_tokens and tokens[row] < tokens[best]):
                best = row
        if best >= 0:
            row_of[sample] = best
            tokens[best] += length
            number[best] += 1
            work[best] += own_work[sample]
