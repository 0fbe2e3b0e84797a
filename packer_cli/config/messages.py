"""A wrong value in words: the option, the rule, the value."""

from __future__ import annotations

import os
import re
import reprlib
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from pydantic import ValidationError

from packer_cli.errors import ConfigError, did_you_mean
from packer_cli.plan.core.groups import Group
from packer_cli.remote.path import as_path


class TreesError(ConfigError):
    """Error of an option that does not go with samples that share prefixes."""

    def __init__(self, option: str, why: str, remedy: str) -> None:
        """Take the option with its value, a sentence less its subject, and the remedy."""
        what = f"{option} does not work with preference pairs, groups or --turns branch"
        super().__init__(f"{what}: it {why}; {remedy}")
        self.why = why


def say_wrong(error: ValidationError) -> str:
    """Write the first error in words: the option, the rule, the value."""
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
    """Write the rule for a value that pydantic's error tells."""
    limits = error.get("ctx", {})
    for name, words in _LIMITS.items():
        if name in limits:
            return f"must be {words} {str(limits[name]).removesuffix('.0')}"
    kind = error["type"].split("_")[0]
    return f"must be {_TYPES[kind]}" if kind in _TYPES else f"is wrong ({error['msg']})"


_LIMITS = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below", "expected": "one of"}
_TYPES = {
    "int": "an integer",
    "float": "a number",
    "finite": "a finite number",
    "string": "text",
    "bool": "true or false",
    "tuple": "a list",
    "dataclass": "a mapping",
}


def show_value(value: Any) -> str:
    """Write a wrong value for a message; cut it short, for a few lines of YAML can hold a value without end."""
    if isinstance(value, str) and re.fullmatch("-?[0-9]+", value):
        return value
    short = reprlib.Repr()
    short.maxlevel, short.maxstring, short.maxother = 3, 200, 200
    return short.repr(value)


def option_name(name: str) -> str:
    """Return an option's name on the command line, by the name of its field or a path that begins with the name."""
    field = name.split(".")[0]
    return {"inputs": "INPUT", "record_schema": "--schema"}.get(field, "--" + field.replace("_", "-"))


def load_config_file(path: str) -> Mapping[str, object]:
    """Read a YAML file of options; keys are option names with `-` or `_`.

    Numbers are written in decimal: YAML 1.1 would read the group 16384:1 as a time of day, and 010 as eight.
    """
    import yaml

    try:
        data = yaml.load(as_path(path).read_bytes().decode(), Loader=_loader(path))
    except OSError as error:
        raise ConfigError(f"config file {path!r} cannot be read: {error.strerror}; name a YAML file") from None
    except (yaml.YAMLError, UnicodeDecodeError, ValueError, RecursionError) as error:
        raise ConfigError(f"config file {path!r} is not YAML: {why_not_yaml(error)}") from None
    if data is None:
        return {}
    if not isinstance(data, dict) or not all(isinstance(key, str) for key in data):
        raise ConfigError(f"config file {path!r} must map option names to values; write lines such as gpus: 8")
    options: dict[str, object] = {}
    for key, value in data.items():
        name = key.replace("-", "_")
        if name in options:
            raise ConfigError(f"config file {path!r} gives {key!r} twice; keep one of them")
        options[name] = value
    return options


def why_not_yaml(error: Exception) -> str:
    """Describe the error of a text that cannot be parsed, on one line, without the text itself.

    >>> import yaml
    >>> try:
    ...     yaml.safe_load("a: 1\\nb: [2")
    ... except yaml.YAMLError as error:
    ...     print(why_not_yaml(error))
    line 2: expected ',' or ']', but got '<stream end>'
    """
    mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
    if mark is None or problem is None:
        return " ".join(str(error).split())
    return f"line {mark.line + 1}: {' '.join(problem.split())}"


def _is_plain_text(text: str) -> bool:
    """Whether a name on disk may have this text, as all text that a command line can give."""
    try:
        return b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:
        return False


def _loader(path: str) -> Any:
    """Make PyYAML's safe loader with the integers of YAML 1.2, and without keys that are given twice."""
    import yaml

    class Loader(yaml.SafeLoader):
        def construct_scalar(self, node: Any) -> Any:
            value = super().construct_scalar(node)
            if isinstance(value, str) and not _is_plain_text(value):
                raise ConfigError(
                    f"config file {path!r} holds {value!a}; no option takes such a character, so remove it"
                )
            return value

        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            keys = [self.construct_object(key, deep=True) for key, _ in node.value]
            twice = next((key for i, key in enumerate(keys) if key in keys[:i]), None)
            if twice is not None:
                raise ConfigError(f"config file {path!r} gives {twice!r} twice; keep one of them")
            return super().construct_mapping(node, deep)

    Loader.yaml_implicit_resolvers = {
        first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:int"]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    Loader.add_implicit_resolver("tag:yaml.org,2002:int", re.compile(r"[-+]?(0|[1-9][0-9]*)$"), list("-+0123456789"))
    return Loader
