"""`--config FILE.yaml`."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from packer_cli.errors import ConfigError


def load_config_file(path: str) -> dict[str, Any]:
    """Read a YAML file of options; keys are option names with `-` or `_`.

    Numbers are written in decimal: YAML 1.1 would read the group 16384:1 as a time of day, and 010 as eight.
    """
    import yaml

    try:
        data = yaml.load(Path(path).read_text(encoding="utf-8"), Loader=_loader(path))
    except OSError as error:
        raise ConfigError(f"config file {path!r} cannot be read: {error.strerror}; name a YAML file") from None
    except (yaml.YAMLError, UnicodeDecodeError, ValueError, RecursionError) as error:
        raise ConfigError(f"config file {path!r} is not YAML: {why_not_yaml(error)}") from None
    if data is None:
        return {}
    if not isinstance(data, dict) or not all(isinstance(key, str) for key in data):
        raise ConfigError(f"config file {path!r} must map option names to values; write lines such as gpus: 8")
    options: dict[str, Any] = {}
    for key, value in data.items():
        name = key.replace("-", "_")
        if name in options:
            raise ConfigError(f"config file {path!r} gives {key!r} twice; keep one of them")
        options[name] = value
    return options


def why_not_yaml(error: Exception) -> str:
    """What is wrong with a text that cannot be parsed, on one line, without the text itself.

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
    """Whether a name on disk may have it, as all that a command line can give."""
    try:
        return b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:
        return False


def _loader(path: str) -> Any:
    """PyYAML's safe loader with the integers of YAML 1.2, and without keys that are given twice."""
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
