"""`--max-path-tokens`: the limit on what a varlen kernel gathers for the rows of a set with trees."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from packer_cli.sizes import parse_number

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from packer_cli.plan.core.types import Plan

RAISE_LIMIT = "raise it, or give none for FlexAttention (format tree-flex)"
_MOST = 10_000


def parse_path_tokens(text: str | None) -> int | None:
    """`--max-path-tokens` in percent of the capacity; 0: no limit; None: samples are flat.

    >>> [parse_path_tokens(text) for text in ("2x", "1.5x", "none", None)]
    [200, 150, 0, None]

    Raises:
        ValueError: anything else.
    """
    if text is None or text == "none":
        return 0 if text else None
    try:
        percent = round(100 * parse_number(text.removesuffix("x")))
    except (ValueError, OverflowError):
        percent = 0
    if not text.endswith("x") or not 100 <= percent <= 100 * _MOST:
        raise ValueError(
            f"must be a multiple of the capacity of at least 1x, such as 2x, or none, got {text!r}; a pack has at "
            "least as many path tokens as tokens"
        )
    return percent


def read_path_tokens(value: object) -> str | None:
    """The value as it is kept. Raises ValueError where it is not one."""
    text = None if value is None else str(value).strip().lower()
    parse_path_tokens(text)
    return text


def row_notes(plan: Plan, max_path_tokens: str | None) -> list[str]:
    """Notes for people where rows of trees reach another limit before they are full of tokens. O(pieces)."""
    trees, packs = plan.pieces.trees, plan.packs
    if trees is None:
        return []
    nearly_full = 0.9 * np.array([group.capacity for group in plan.groups])[packs.group]

    def of_rows(values: NDArray[np.integer]) -> NDArray[np.int64]:
        return np.add.reduceat(values[packs.pieces], packs.offsets[:-1], dtype=np.int64)

    has_room = of_rows(plan.pieces.length) < nearly_full
    percent = plan.path_percent
    by_paths = has_room & bool(percent) & (100 * of_rows(trees.path_tokens) >= (percent or 0) * nearly_full)
    by_loss = has_room & (of_rows(trees.size) >= nearly_full)
    found = (
        (by_paths, f"path tokens (--max-path-tokens {max_path_tokens})", RAISE_LIMIT),
        (
            by_loss,
            "loss tokens, counted once for each branch,",
            "narrow --loss-on, so that shared tokens have no loss",
        ),
    )
    return [
        f"{rows.sum():,} of {len(packs):,} rows are full of {what} before they are full of tokens; {remedy}"
        for rows, what, remedy in found
        if 100 * rows.sum() > len(packs)
    ]
