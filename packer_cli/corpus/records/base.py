"""What every record shape is made of."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

Record = dict[str, Any]


class BadRecordError(ValueError):
    """Why a record is rejected; never leaves this package."""


class Shape(NamedTuple):
    """One record shape: the keys that tell it, and the function that reads it."""

    alternatives: tuple[tuple[str, ...], ...]
    """A record has this shape when it has all keys of one of these."""
    optional: tuple[str, ...]
    """Further keys that `parse` reads; columns outside both are never loaded from Parquet or Arrow."""
    parse: Callable[[Record, int], Any]
    """(record, line) -> the `Document`, or a `Reject`; for tokenized records a `TokenRecord`. Called only for records
    that `matches`."""

    def matches(self, keys: Iterable[str]) -> bool:
        """Whether a record with these keys has this shape."""
        present = set(keys)
        return any(present.issuperset(wanted) for wanted in self.alternatives)

    def fields(self) -> set[str]:
        """Every key that `parse` may look at."""
        return {key for wanted in self.alternatives for key in wanted} | set(self.optional)

    def expected(self) -> str:
        """The keys in words: `"prompt" and "completion" or "prompt" and "response"`."""
        return " or ".join(" and ".join(f'"{key}"' for key in wanted) for wanted in self.alternatives)


def type_name(value: object) -> str:
    """The JSON name of a value's type, with its article: `a number`."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, int | float):
        return "a number"
    if isinstance(value, str):
        return "a string"
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list) or hasattr(value, "dtype"):
        return "an array"
    return f"a {type(value).__name__}"


def show_keys(record: Record) -> str:
    """The record's keys for a message, at most ten of them."""
    keys = [f'"{key}"' for key in list(record)[:10]]
    if len(record) > 10:
        keys.append(f"and {len(record) - 10} more")
    return ", ".join(keys) if keys else "none"
