"""A row of a comparison, and what came of it."""

from __future__ import annotations

from dataclasses import dataclass

from packer_cli.compare.row_figures import RowFigures
from packer_cli.compare.rows import Kind, Row
from packer_cli.compare.savings import Savings
from packer_cli.config.no_effect import without_effect
from packer_cli.engine.local import Failed
from packer_cli.format.metrics import GroupMetrics, OverallMetrics
from packer_cli.format.records import Hidden
from packer_cli.simulate.figures import EpochFigures

_OPTIONS = ("packing", "fill", "balance", "overflow")


@dataclass(frozen=True, kw_only=True)
class ComparedRow:
    """A row and what came of it: figures, or an error."""

    spec: Hidden[Row]
    """How it is planned."""
    name: str
    """As `--algorithms` or `--strategies` take it."""
    kind: Kind
    note: str
    is_own: bool
    """Whether it is what the options themselves plan."""
    options: dict[str, str]
    """Of the plan, as `hbpack plan` takes them."""
    error: str | None
    """Why it failed; None if it has the figures that follow."""
    seconds: float | None = None
    """Time to plan."""
    peak_bytes: int | None = None
    """Memory to plan, above that of the samples; None if the system does not report it."""
    cut_off: bool | None = None
    """Whether a packing used up its time limit."""
    overall: OverallMetrics | None = None
    groups: tuple[GroupMetrics, ...] | None = None
    simulation: EpochFigures | None = None
    """Its predicted epoch, with a model of time."""
    saves: Savings | None = None
    """What its predicted epoch saves over the baseline's."""


def compared_row(spec: Row, outcome: RowFigures | Failed) -> ComparedRow:
    """The row with its figures, or with the reason why it has none."""
    config = spec.config
    options = {name: getattr(config, name) for name in _OPTIONS if name not in without_effect(config)}
    return ComparedRow(
        spec=spec,
        name=spec.name,
        kind=spec.kind,
        note=spec.note,
        is_own=spec.is_own,
        options={"strategy": config.strategy, "groups": ",".join(map(str, config.groups)), **options},
        **({"error": outcome.reason} if isinstance(outcome, Failed) else {"error": None, **vars(outcome)}),
    )
