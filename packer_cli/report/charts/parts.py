"""Names and colors of what GPUs do, for all charts of time."""

from __future__ import annotations

from collections.abc import Iterable

from packer_cli.simulate.epoch import PARTS

LABELS = {
    "compute": "computing",
    "recompute": "computing again",
    "communication": "communicating",
    "padding": "padding",
    "waiting": "waiting",
    "constant": "fixed cost",
    "bubbles": "pipeline bubbles",
    "steps": "end of a step",
}
"""By part, see `PARTS`."""


def legend_of(parts: Iterable[str]) -> tuple[list[str], list[str]]:
    """Labels and colors of these parts, in the order of `PARTS`."""
    used = set(parts)
    shown = [part for part in PARTS if part in used]
    return [LABELS[part] for part in shown], [f"var(--part-{part})" for part in shown]
