"""JSON to frozen dataclasses, as strict as their annotations: no other keys, no other types, no conversion.

Errors name the place in the JSON and the rule. pydantic, which GPU nodes do without, reads the same annotations where
it makes the JSON Schema of a record.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

_TYPES = {
    str: ((str,), "text"),
    int: ((int,), "an integer"),
    float: ((float, int), "a number"),
    bool: ((bool,), "true or false"),
}


@dataclass(frozen=True)
class Rule:
    """A rule for a value besides its type: metadata of `Annotated`."""

    find_fault: Callable[[Any], str | None]
    """Function that names the fault of a value, in a few words that follow its place and value; None where it is
    right."""
    json_schema: tuple[tuple[str, Any], ...] = ()
    """Keys that the rule adds to the JSON Schema."""

    def __get_pydantic_json_schema__(
        self, core_schema: Any, handler: Callable[[Any], dict[str, Any]]
    ) -> dict[str, Any]:
        """Add the rule to the JSON Schema, where pydantic asks for it."""
        return {**handler(core_schema), **dict(self.json_schema)}


class _Hide:
    """A field's annotation by which pydantic gives it no place in JSON."""

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        return {"type": "any"}


_HIDDEN = _Hide()
Hidden = Annotated[T, _HIDDEN]
"""A field of a result that its JSON does not have."""


def in_json(getter: F) -> F:
    """Mark the getter of a property as a part of its record's JSON."""
    getter.__dict__["in_json"] = True
    return getter


def json_properties(kind: type) -> dict[str, Callable[[Any], Any]]:
    """Find the getters of the properties of a record that are in its JSON."""
    found = {name: each.fget for base in reversed(kind.__mro__) for name, each in vars(base).items()
             if isinstance(each, property)}  # fmt: skip
    return {name: getter for name, getter in found.items() if getter is not None and "in_json" in vars(getter)}


def read_record(kind: type[T], value: Any) -> T:
    """Make the record of JSON values. O(values).

    Raises:
        ValueError: a value is not as its annotation says, a key is missing, or there is one too many.

    >>> @dataclass
    ... class Shard:
    ...     num_packs: int
    >>> read_record(Shard, {"num_packs": "1"})
    Traceback (most recent call last):
    ValueError: num_packs is '1', not an integer
    """
    record: T = _read(kind, value, "")
    return record


def json_values(value: Any) -> Any:
    """Make JSON values of a record, or of anything with records in it. Fields that are None by default, and are None,
    are left out, and so are fields that are `Hidden`; properties `in_json` are added.

    >>> @dataclass
    ... class Shard:
    ...     num_packs: int | None
    ...     name: str | None = None
    >>> json_values([Shard(None), Shard(3, "a")])
    [{'num_packs': None}, {'num_packs': 3, 'name': 'a'}]
    """
    if is_dataclass(value):
        names = json_names(type(value))  # type: ignore[arg-type]  # mypy: a type is not hashable
        found = ((name, getattr(value, name), default) for name, default in names)
        return {name: json_values(inner) for name, inner, default in found if inner is not None or default is not None}
    if isinstance(value, Mapping):
        return {str(name): json_values(inner) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [json_values(inner) for inner in value]
    if hasattr(value, "model_dump"):  # pydantic's
        return value.model_dump(mode="json")
    return value.tolist() if hasattr(value, "tolist") else value  # numpy's


@cache
def json_names(kind: Any) -> list[tuple[str, Any]]:
    """Name and default of the fields and properties of a record that JSON has."""
    hints = get_type_hints(kind, include_extras=True)
    named = [(each.name, each.default) for each in fields(kind) if _HIDDEN not in get_args(hints[each.name])[1:]]
    return [*named, *((name, None) for name in json_properties(kind))]


def sort_keys(value: Any) -> Any:
    """Put the keys of every object of JSON values in order.

    >>> sort_keys({"b": [{"d": 1, "c": 2}], "a": 3})
    {'a': 3, 'b': [{'c': 2, 'd': 1}]}
    """
    return json.loads(json.dumps(value, sort_keys=True))


def _read(kind: Any, value: Any, place: str) -> Any:
    """Read the value of an annotation; `place` is for messages."""
    origin = get_origin(kind)
    if origin is None:
        if kind in _TYPES:
            types, name = _TYPES[kind]
            return _expect(type(value) in types, value, place, name)
        if hasattr(kind, "model_validate"):  # pydantic's
            return kind.model_validate(value)
        return _read_fields(kind, value, place) if is_dataclass(kind) else value  # Any.
    arguments = get_args(kind)
    if origin is Annotated:
        value = _read(arguments[0], value, place)
        for rule in arguments[1:]:
            fault = rule.find_fault(value)
            if fault is not None:
                raise ValueError(f"{place} is {shown(value)}, {fault}")
        return value
    if origin is tuple:
        _expect(isinstance(value, list), value, place, "a list")
        return tuple(_read(arguments[0], item, f"{place}[{i}]") for i, item in enumerate(value))
    if origin in (dict, Mapping):
        _expect(isinstance(value, dict), value, place, "an object")
        return {arguments[0](name): _read(arguments[1], item, f"{place}.{name}") for name, item in value.items()}
    if origin in (Union, UnionType):
        (other,) = (argument for argument in arguments if argument is not NoneType)
        return None if value is None else _read(other, value, place)
    assert origin is Literal
    return _expect(value in arguments, value, place, f"{arguments[0]!r}")


def _read_fields(kind: Any, value: Any, place: str) -> Any:
    _expect(isinstance(value, dict), value, place, "an object")
    kinds, needed = _fields_of(kind)
    begin = f"{place}." if place else ""
    for name in needed:
        if name not in value:
            raise ValueError(f"it lacks {begin}{name}")
    for name in value:
        if name not in kinds:
            raise ValueError(f"it has {shown(begin + name)}, which this release does not know")
    return kind(**{name: _read(kinds[name], item, begin + name) for name, item in value.items()})


@cache
def _fields_of(kind: Any) -> tuple[dict[str, Any], list[str]]:
    """Find the annotations of a record's fields, and the names of the fields without a default."""
    hints = get_type_hints(kind, include_extras=True)
    needed = [field.name for field in fields(kind) if field.default is field.default_factory is MISSING]
    return {field.name: hints[field.name] for field in fields(kind)}, needed


def _expect(is_right: bool, value: Any, place: str, rule: str) -> Any:
    if not is_right:
        raise ValueError(f"{place or 'it'} is {shown(value)}, not {rule}")
    return value


def shown(value: Any) -> str:
    """Show a value in a message.

    >>> shown("x" * 99)[-5:]
    'xx...'
    """
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
