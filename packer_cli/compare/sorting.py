"""The columns of a comparison's table, and the order of its rows."""

from __future__ import annotations

from collections.abc import Sequence

from packer_cli.compare.columns import COLUMNS, COSTED, PREDICTED, Column
from packer_cli.compare.side_by_side import ComparedRow
from packer_cli.config.auto_groups import GIVE
from packer_cli.errors import ConfigError, did_you_mean

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
    figures = [column.value(row.figures) if row.figures else None for row in rows]
    known = [(-figure if is_descending else figure, i) for i, figure in enumerate(figures) if figure is not None]
    return (*(rows[i] for _, i in sorted(known)), *(rows[i] for i, figure in enumerate(figures) if figure is None))
