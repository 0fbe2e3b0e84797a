"""The user's choice of which packs share an iteration."""

from __future__ import annotations

from dataclasses import dataclass


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
