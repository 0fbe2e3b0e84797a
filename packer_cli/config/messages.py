"""A wrong value in words: the option, the rule, the value."""

from __future__ import annotations

import re
import reprlib
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from packer_cli.errors import ConfigError, did_you_mean
from packer_cli.plan.core.groups import Group

M = TypeVar("M", bound=BaseModel)


def validate(model: type[M], values: Mapping[str, Any]) -> M:
    """Build a model; a wrong value becomes a ConfigError of one line.

    Args:
        values: those of a command, which may have more than the model; None stands for an option that was not given.
    """
    try:
        return model(**{name: values[name] for name in model.model_fields if values.get(name) is not None})
    except ValidationError as error:
        raise ConfigError(_say(error)) from None


def _say(error: ValidationError) -> str:
    """The first thing that is wrong, in words: the option, the rule, the value."""
    first = error.errors()[0]
    place, kind, value = first["loc"], first["type"], first["input"]
    option = option_name(str(place[0])) if place else ""
    inner = " ".join(part for part in place[1:] if isinstance(part, str))
    name = f"{option}: {inner}" if inner else option
    if kind == "value_error":
        return ": ".join(filter(None, (option, first["msg"].removeprefix("Value error, "))))
    if kind in ("missing", "too_short", "string_too_short"):
        return f"{name} is required"
    if kind in ("extra_forbidden", "unexpected_keyword_argument"):
        known = [field.name for field in fields(Group)]  # The only mapping among the options.
        return f"{option}: unknown key {inner!r}{did_you_mean(inner, known)}; a group has {', '.join(known)}"
    return f"{name} {rule(first)}, got {show_value(value)}"


def rule(error: Any) -> str:
    """What pydantic\'s error says that a value must be."""
    limits = error.get("ctx", {})
    for name, words in _LIMITS.items():
        if name in limits:
            return f"must be {words} {limits[name]}"
    kind = error["type"].split("_")[0]
    return f"must be {_TYPES[kind]}" if kind in _TYPES else f"is wrong ({error['msg']})"


_LIMITS = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below", "expected": "one of"}
_TYPES = {"int": "an integer", "string": "text", "bool": "true or false", "tuple": "a list", "dataclass": "a mapping"}


def show_value(value: Any) -> str:
    """A wrong value for a message; cut short, for a few lines of YAML can hold one without end."""
    if isinstance(value, str) and re.fullmatch("-?[0-9]+", value):
        return value
    short = reprlib.Repr()
    short.maxlevel, short.maxstring, short.maxother = 3, 200, 200
    return short.repr(value)


def option_name(name: str) -> str:
    """An option as the command line has it, by the name of its field or a path that begins with it."""
    field = name.split(".")[0]
    return {"inputs": "INPUT", "record_schema": "--schema"}.get(field, "--" + field.replace("_", "-"))
