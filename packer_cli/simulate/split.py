"""Where the GPUs' time goes, as columns of a table."""

from __future__ import annotations

from collections.abc import Sequence

from packer_cli.simulate.epoch import PARTS

_HEADERS = {"communication": "comm.", "constant": "fixed", "steps": "step extra"}
_FIRST = ("compute", "communication", "waiting")
"""Parts that always have a column; the others have one only if some row has them."""


def shown_parts(splits: list[dict[str, float]]) -> list[str]:
    """The names of the parts that get a column."""
    return [
        name
        for name in PARTS
        if name in _FIRST or any(split[name] >= 5e-4 * sum(split.values()) > 0 for split in splits)
    ]


def headers(parts: Sequence[str]) -> list[str]:
    """The headers of the parts' columns."""
    return [_HEADERS.get(name, name) for name in parts]


def shares(split: dict[str, float], parts: Sequence[str]) -> list[str]:
    """The parts' cells: each part's share of the GPUs' time."""
    total = sum(split.values())
    return [f"{split[name] / total:.1%}" if total else "-" for name in parts]
