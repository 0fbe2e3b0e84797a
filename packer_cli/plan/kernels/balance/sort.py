"""Balance batching: iterations of packs with nearly equal work (HBP, algorithm 7; see `plan.core.cost` for work).

The packs of a group are sorted by work, and consecutive packs form an iteration. Price: O(p log p). A
global sort puts similar packs together, which costs randomness; sorting within random windows of a few iterations
keeps more of it. The order of the iterations is shuffled afterwards.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

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
