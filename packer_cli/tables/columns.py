"""The figures of a comparison: the columns of its table, by which its rows are sorted, too."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from packer_cli.compare import ComparedRow
from packer_cli.config.fields import GIVE
from packer_cli.errors import ConfigError, did_you_mean
from packer_cli.format.metrics import OverallMetrics
from packer_cli.simulate.figures import OverallFigures
from packer_cli.sizes import amount, duration, ratio


@dataclass(frozen=True)
class Column:
    """One figure of every row."""

    name: str
    """Name as `--sort` takes it."""
    header: str
    value: Callable[[ComparedRow], float | None]
    """The figure; None if a row has none."""
    show: Callable[[float], str]
    is_extra: bool = False
    """Whether a table may leave it out for want of room."""


def _overall(figure: Callable[[OverallMetrics], float | None]) -> Callable[[ComparedRow], float | None]:
    return lambda row: None if row.overall is None else figure(row.overall)


def _predicted(figure: Callable[[OverallFigures], float]) -> Callable[[ComparedRow], float | None]:
    return lambda row: None if row.simulation is None else figure(row.simulation.overall)


_whole = "{:,.0f}".format
_one = "{:,.1f}".format
_three = "{:.3f}".format

PREDICTED = (
    Column("epoch", "epoch", _predicted(lambda epoch: epoch.seconds), duration),
    Column("gpu-days", "GPU-days", _predicted(lambda epoch: epoch.gpu_days), amount, is_extra=True),
)
"""Columns of a comparison with a time model."""

COSTED = (
    Column("cbr", "CBR", _overall(lambda metrics: metrics.cbr), ratio),
    Column("cbr-bound", "CBR bound", _overall(lambda metrics: metrics.cbr_bound), ratio, is_extra=True),
)
"""Columns of a comparison with a cost other than attention work."""

COLUMNS = (
    *PREDICTED,
    Column("packs", "packs", _overall(lambda metrics: metrics.num_packs), _whole, is_extra=True),
    Column(
        "over-bound",
        "over bound",
        # Where a step has a given number of micro-batches, fewer packs are not wanted.
        _overall(lambda each: None if each.mean_delay is not None else each.num_packs / each.packs_lower_bound - 1),
        lambda value: f"{value:.2%}" if value < 1 else f"{value:,.0%}",
        is_extra=True,
    ),
    Column("pr", "PR", _overall(lambda metrics: metrics.pr), ratio),
    Column("dbr", "DBR", _overall(lambda metrics: metrics.dbr), ratio, is_extra=True),
    Column("abr", "ABR", _overall(lambda metrics: metrics.abr), ratio),
    Column("abr-bound", "ABR bound", _overall(lambda metrics: metrics.abr_bound), ratio, is_extra=True),
    *COSTED,
    Column("cr", "CR", _overall(lambda metrics: metrics.cr), ratio),
    Column(
        "step-tokens",
        "tokens a step",
        _overall(lambda metrics: metrics.num_tokens / max(1, metrics.num_steps)),
        _whole,
        is_extra=True,
    ),
    Column("ave-t", "Ave-T", _overall(lambda metrics: metrics.ave_t), _whole, is_extra=True),
    Column("imbalance", "imbalance", _overall(lambda metrics: metrics.imbalance), _three),
    Column("displacement", "displaced", _overall(lambda metrics: metrics.mean_displacement), _one, is_extra=True),
    Column("delay", "delay", _overall(lambda metrics: metrics.mean_delay), "{:.2f}".format),
    Column("length-mix", "length mix", _overall(lambda metrics: metrics.length_mix_spread), _three),
    Column("source-mix", "source mix", _overall(lambda metrics: metrics.source_mix_spread), _three, is_extra=True),
    Column("time", "time, s", lambda row: row.seconds, lambda value: f"{value:.2f}" if value >= 1 else f"{value:.4f}"),
    Column("memory", "MiB", lambda row: row.peak_bytes, lambda value: f"{value / 2**20:,.1f}", is_extra=True),
)

_COLUMN_OF = {column.name: column for column in COLUMNS}


def parse_columns(text: str) -> tuple[Column, ...]:
    """Parse `main`, `all` or a comma-separated list of columns.

    Raises:
        ConfigError: there is no such column.
    """
    if text in ("main", "all"):
        return tuple(column for column in COLUMNS if text == "all" or not column.is_extra)
    return tuple(_column(name.strip(), "--columns") for name in text.split(","))


def _column(text: str, option: str) -> Column:
    name = text.lower().replace("_", "-")
    if name not in _COLUMN_OF:
        near = did_you_mean(name, _COLUMN_OF)
        raise ConfigError(f"{option}: there is no column {text!r}{near}; columns: {', '.join(_COLUMN_OF)}")
    return _COLUMN_OF[name]


def parse_sort(text: str, *, has_model: bool = True, has_cost: bool = True) -> tuple[Column, bool]:
    """Parse `COLUMN` or `-COLUMN` into (column, whether the order is descending).

    Args:
        has_model: whether epochs are predicted.
        has_cost: whether plans are balanced by a cost other than attention work.

    Raises:
        ConfigError: there is no such column, or it needs a time model or a cost.
    """
    column = _column(text.removeprefix("-"), "--sort")
    if not has_model and column in PREDICTED:
        raise ConfigError(f"--sort {text} needs {GIVE}")
    if not has_cost and column in COSTED:
        raise ConfigError(f"--sort {text} needs a --cost, such as 1,24576; without one it is ABR")
    return column, text.startswith("-")


def sort_rows(rows: Sequence[ComparedRow], order: tuple[Column, bool] | None) -> tuple[ComparedRow, ...]:
    """Sort rows by a column, stably; rows without a figure come last."""
    if order is None:
        return tuple(rows)
    column, is_descending = order
    figures = [column.value(row) for row in rows]
    known = [(-figure if is_descending else figure, i) for i, figure in enumerate(figures) if figure is not None]
    return (*(rows[i] for _, i in sorted(known)), *(rows[i] for i, figure in enumerate(figures) if figure is None))
