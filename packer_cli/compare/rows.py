"""The rows of a comparison: the plan options, with another packing, balance or group in each.

A row is written `[PACKING][/BALANCE][@longest]`; what is left out is as in the plan options, and `@longest` is the
longest group alone. `isf:rounds=10/window:8` and `/none` and `none@longest` are rows. So every row of the default
table has a name that `--algorithms` reads.
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
"""Seconds for all groups together of a packing that takes a time limit, where the default table names it."""

_LONGEST = "longest"


@dataclass(frozen=True, kw_only=True)
class Row:
    """One plan to compare."""

    name: str
    """As `--algorithms` takes it."""
    kind: str
    """What the row is there to show: `packing`, `balance`, `baseline`, or `chosen` by the user."""
    config: PlanConfig
    note: str = ""
    """What a reader must know of the row; for people."""

    @property
    def has_time_limit(self) -> bool:
        """Whether the packing may stop before it is done."""
        return hasattr(parse_packing(self.config.packing, REGISTRY)[1], "time_limit")


def default_rows(config: PlanConfig) -> list[Row]:
    """Every packing algorithm, every way to balance, and the baselines of the papers.

    Algorithms share the balance of the options, ways to balance their packing; equal rows stand once.
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
    return _each_once(rows)


def with_baseline(rows: list[Row], config: PlanConfig) -> tuple[list[Row], int]:
    """The rows with HBP's baseline among them, last if it was not there; and its place."""
    baseline = _baseline_row(config)
    rows = _each_once([*rows, baseline])
    return rows, [_key(row.config) for row in rows].index(_key(baseline.config))


def parse_rows(text: str, config: PlanConfig) -> list[Row]:
    """Read rows with commas between them, see the module for their form.

    Raises:
        ConfigError: no row, or one that is not of the form; an unknown packing, option or balance.
    """
    rows = []
    for item in split_rows(text):
        spec, at, place = item.partition("@")
        packing, slash, balance = spec.partition("/")
        if not item or (slash and not balance) or (at and place != _LONGEST):
            raise ConfigError(f"--algorithms: row {item!r} is not {FORM}")
        try:
            parse_packing(packing or config.packing, REGISTRY)
            parse_balance(balance or config.balance)
        except ValueError as error:
            hint = f"; a balance stands after a slash: /{packing}" if _is_balance(packing) else ""
            raise ConfigError(f"--algorithms: row {item!r}: {error}{hint}") from None
        rows.append(_make_row(config, "chosen", packing, balance, is_longest=bool(at)))
    return _each_once(rows)


def split_rows(text: str) -> list[str]:
    """At the commas that do not stand between the options of a packing.

    >>> split_rows("isf:rounds=10,threshold=0.9/none,bfd")
    ['isf:rounds=10,threshold=0.9/none', 'bfd']
    """
    return [item.strip() for item in re.split(r",(?!\s*\w+=)", text)]


def _make_row(config: PlanConfig, kind: str, packing: str, balance: str, *, is_longest: bool, note: str = "") -> Row:
    """A row by its three parts; what its packing needs is changed besides, and noted."""
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
    place = f"@{_LONGEST}" if row.groups != config.groups else ""
    return row.packing + ("" if is_same else f"/{row.balance}") + place


def _limited(algorithm: PackingAlgorithm, num_groups: int) -> str:
    """An algorithm's name; with a time limit if it takes one."""
    fields = {field.name for field in dataclasses.fields(algorithm.options)}
    return f"{algorithm.name}:time_limit={TIME_LIMIT / num_groups:g}" if "time_limit" in fields else algorithm.name


def _each_once(rows: Iterable[Row]) -> list[Row]:
    """Equal rows stand where the first one does, with the note of any."""
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
