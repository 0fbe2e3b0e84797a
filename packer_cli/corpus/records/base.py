"""Parts of every record shape."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple, TypeVar

from packer_cli.corpus.types import Document, Record, Reject

T = TypeVar("T")


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
    that `matches`. hbpack's own raise BadRecordError in place of a `Reject`."""

    def matches(self, keys: Iterable[str]) -> bool:
        """Whether a record with these keys has this shape."""
        present = set(keys)
        return any(present.issuperset(wanted) for wanted in self.alternatives)

    def fields(self) -> set[str]:
        """Return every key that `parse` may look at."""
        return {key for wanted in self.alternatives for key in wanted} | set(self.optional)

    def expected(self) -> str:
        """Write the keys in words: `"prompt" and "completion" or "prompt" and "response"`."""
        return " or ".join(" and ".join(f'"{key}"' for key in wanted) for wanted in self.alternatives)


def take_shape(name: str, thing: Any) -> Shape:
    """Take the shape that another package brings; a record that its `parse` fails on is rejected. Raises TypeError."""
    if not isinstance(thing, Shape):
        raise TypeError(f"it must be a Shape, not {type(thing).__name__}")
    return thing._replace(parse=partial(_parse_other, name, thing.parse))


def _parse_other(name: str, parse: Callable[[Record, int], Any], record: Record, line: int) -> Document | Reject:
    try:
        found = parse(record, line)
    except Exception as error:
        why = f"{type(error).__name__}: {' '.join(str(error).split())}"
        return Reject(line, f"schema {name}: {without_texts(why, record)}")
    if isinstance(found, Document) and found.kind == "preference" and len(found.branches) != 2:
        return Reject(line, f"schema {name} made a pair of {len(found.branches)} branches of it, not 2")
    if isinstance(found, (Document, Reject)):
        return found
    return Reject(line, f"schema {name} made a {type(found).__name__} of it, not a Document or Reject")


def read_string(record: Record, key: str, *, is_optional: bool = False) -> str:
    """Read a string of a record; empty where it may be missing and is missing, or null.

    Raises:
        BadRecordError: it is something else.
    """
    value = record.get(key)
    if value is None and is_optional:
        return ""
    return require(value, str, f'"{key}"', "a string")


def require(value: Any, kind: type[T], where: str, what: str) -> T:
    """Return a value of a type, as `what` names it.

    Raises:
        BadRecordError: it is of another.
    """
    if not isinstance(value, kind):
        raise BadRecordError(f"{where} must be {what}, this is {type_name(value)}")
    return value


def as_list(value: Any) -> Any:
    """Return an array as a list, anything else as it is."""
    return value.tolist() if hasattr(value, "tolist") else value


def type_name(value: object) -> str:
    """Return the JSON name of a value's type, with its article: `a number`."""
    names = {bool: "a boolean", int: "a number", float: "a number", str: "a string", dict: "an object"}
    if value is None:
        return "null"
    if isinstance(value, list) or hasattr(value, "dtype"):
        return "an array"
    return names.get(type(value), f"a {type(value).__name__}")


_LABEL = re.compile(r"[a-z_]{1,20}|\W*|\w{1,2}|\d{3}")
"""A word such as roles and types are, or a text too short to be private."""


def without_texts(reason: str, found: Any) -> str:
    """Leave out of a reason what it quotes of a record's texts, such as a role that is none: they may be private.

    >>> without_texts("unknown role 'Jane Roe', not 'user'", {"role": "Jane Roe", "content": "user"})
    "unknown role '...', not 'user'"
    """
    texts, todo = set[str](), [found]
    while todo:
        each = todo.pop()
        if isinstance(each, str) and len(each) <= len(reason) and not _LABEL.fullmatch(each):
            texts |= {each.strip(), " ".join(each.split()), repr(each)[1:-1]}
        elif isinstance(each, (dict, list, tuple)):
            todo += each.values() if isinstance(each, dict) else each
    for text in sorted(texts, key=len, reverse=True):
        reason = re.sub(rf"(?<!\w){re.escape(text)}(?!\w)", "...", reason)
    return reason


def show_keys(record: Record) -> str:
    """Show the record's keys for a message, at most ten of them."""
    keys = [f'"{key}"' for key in list(record)[:10]]
    if len(record) > 10:
        keys.append(f"and {len(record) - 10} more")
    return ", ".join(keys) if keys else "none"


_AS_ZEROS = bytes.maketrans(b"123456789", b"0" * 9)


def has_long_number(data: bytes) -> bool:
    """Whether there may be an integer beyond 64 bits: 20 digits, or a sign and 19. Price: 0.7 ns a byte."""
    zeros = data.translate(_AS_ZEROS)
    return b"0" * 19 in zeros and (b"0" * 20 in zeros or b"-" + b"0" * 19 in zeros)


def read_json(text: str | bytes) -> Any:
    """Parse a text.

    Raises:
        orjson.JSONDecodeError: it is not JSON, or has a number beyond 64-bit floats, of 309 digits or more.
        BadRecordError: it nests too deeply for Python.
    """
    import orjson

    value = orjson.loads(text)
    data = text.encode() if isinstance(text, str) else text
    if not has_long_number(data):
        return value
    try:
        return json.loads(data)
    except RecursionError:
        raise BadRecordError("it has an integer beyond 64 bits, and nests too deeply") from None
