"""The rows of a comparison: the plan options, each with a different packing, balance or group.

A row is written `[PACKING][/BALANCE][@longest]`. Omitted parts are as in the plan options; `@longest` keeps only the
longest group. Examples: `isf:rounds=10/window:8`, `/none`, `none@longest`. `--algorithms` accepts the name of every
row of the default table.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from packer_cli.config import PlanConfig
from packer_cli.errors import ConfigError
from packer_cli.plan.balance import parse_balance
from packer_cli.plan.packing import REGISTRY, PackingAlgorithm, parse_packing

FORM = "[PACKING][/BALANCE][@longest], such as bfd, /window:8+refine or isf:rounds=10/none@longest"
BALANCES = tuple(
    order + refine for order in ("none", "window:4", "window:16", "window:64", "sort") for refine in ("", "+refine")
)
TIME_LIMIT = 10.0
"""Seconds, for all groups together, that the default table gives to a packing with a time limit."""

_LONGEST = "longest"


@dataclass(frozen=True, kw_only=True)
class Row:
    """One plan to compare."""

    name: str
    """In the form that `--algorithms` takes."""
    kind: str
    """Why the row is in the table: `packing`, `balance`, `baseline`, or `chosen` by the user."""
    config: PlanConfig
    note: str = ""
    """A remark for the reader of the table."""

    @property
    def has_time_limit(self) -> bool:
        """Whether the packing may stop at a time limit."""
        return hasattr(parse_packing(self.config.packing, REGISTRY)[1], "time_limit")


def default_rows(config: PlanConfig) -> list[Row]:
    """Rows for every packing algorithm, every balance, and the baselines of the papers.

    Packing rows use the options' balance, balance rows the options' packing; equal rows appear once.
    """
    chosen = config.packing.partition(":")[0]
    rows = []
    for algorithm in REGISTRY.values():
        packing = config.packing if algorithm.name == chosen else _limited(algorithm, len(config.groups))
        rows.append(_make_row(config, "packing", packing, "", is_longest=False))
    rows += [_make_row(config, "balance", "", balance, is_longest=False) for balance in BALANCES]
    rows += [
        _baseline_row(config),
        _make_row(config, "baseline", "sorted", "sort", is_longest=True, note="LongAlign's sorted batches"),
        _make_row(config, "baseline", "none", "none", is_longest=True, note="one sample a row, shuffled"),
    ]
    return _unique(rows)


def with_baseline(rows: list[Row], config: PlanConfig) -> tuple[list[Row], int]:
    """The rows with HBP's baseline, appended if missing; and the baseline's index."""
    baseline = _baseline_row(config)
    rows = _unique([*rows, baseline])
    return rows, [_key(row.config) for row in rows].index(_key(baseline.config))


def parse_rows(text: str, config: PlanConfig) -> list[Row]:
    """Parse comma-separated rows, in the form that the module describes.

    Raises:
        ConfigError: a row is empty or malformed, or names an unknown packing, option or balance.
    """
    rows = []
    for item in split_rows(text):
        spec, at, which = item.partition("@")
        packing, slash, balance = spec.partition("/")
        if not item or (slash and not balance) or (at and which != _LONGEST):
            raise ConfigError(f"--algorithms: row {item!r} is not {FORM}")
        try:
            parse_packing(packing or config.packing, REGISTRY)
            parse_balance(balance or config.balance)
        except ValueError as error:
            hint = f"; a balance stands after a slash: /{packing}" if _is_balance(packing) else ""
            raise ConfigError(f"--algorithms: row {item!r}: {error}{hint}") from None
        rows.append(_make_row(config, "chosen", packing, balance, is_longest=bool(at)))
    return _unique(rows)


def split_rows(text: str) -> list[str]:
    """Split at commas, except those between the options of a packing.

    >>> split_rows("isf:rounds=10,threshold=0.9/none,bfd")
    ['isf:rounds=10,threshold=0.9/none', 'bfd']
    """
    return [item.strip() for item in re.split(r",(?!\s*\w+=)", text)]


def _make_row(config: PlanConfig, kind: str, packing: str, balance: str, *, is_longest: bool, note: str = "") -> Row:
    """A row from its three parts, with any further change that its packing needs; a note says so."""
    algorithm, _ = parse_packing(packing or config.packing, REGISTRY)
    changes: dict[str, Any] = {}
    if packing:
        changes["packing"] = packing
    if balance:
        changes["balance"] = balance
    if algorithm.cut and len(config.groups) > 1 and not is_longest:
        is_longest = True
        note = f"{algorithm.name} needs exactly one group"
    if is_longest:
        changes["groups"] = config.groups[-1:]
    if algorithm.needs_split and config.overflow != "split":
        changes["overflow"] = "split"
        note = f"{algorithm.name} needs --overflow split"
    changed = config.model_copy(update=changes)
    return Row(name=_name(changed, config), kind=kind, config=changed, note=note)


def _baseline_row(config: PlanConfig) -> Row:
    note = "HBP's baseline, naive ISF packing"
    return _make_row(config, "baseline", "isf", "none", is_longest=True, note=note)


def _name(row: PlanConfig, config: PlanConfig) -> str:
    is_same = parse_balance(row.balance) == parse_balance(config.balance)
    suffix = f"@{_LONGEST}" if row.groups != config.groups else ""
    return row.packing + ("" if is_same else f"/{row.balance}") + suffix


def _limited(algorithm: PackingAlgorithm, num_groups: int) -> str:
    """The algorithm's name, with a time limit if it has that option."""
    fields = {field.name for field in dataclasses.fields(algorithm.options)}
    return f"{algorithm.name}:time_limit={TIME_LIMIT / num_groups:g}" if "time_limit" in fields else algorithm.name


def _unique(rows: Iterable[Row]) -> list[Row]:
    """Keep the first of equal rows, with the first note that any of them has."""
    kept: dict[Any, Row] = {}
    for row in rows:
        key = _key(row.config)
        first = kept.get(key)
        if first is None:
            kept[key] = row
        elif row.note and not first.note:
            kept[key] = dataclasses.replace(first, note=row.note)
    return list(kept.values())


def _key(config: PlanConfig) -> tuple[Any, ...]:
    algorithm, options = parse_packing(config.packing, REGISTRY)
    return algorithm.name, options, parse_balance(config.balance), config.groups, config.overflow


def _is_balance(text: str) -> bool:
    try:
        parse_balance(text)
    except ValueError:
        return False
    return True
