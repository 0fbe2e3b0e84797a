"""Plan options that a strategy does not support."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic.fields import FieldInfo

from packer_cli.config.defaults import default_of
from packer_cli.errors import ConfigError
from packer_cli.plan.strategies.registry import STRATEGIES


def require_declared(name: str, fields: Mapping[str, FieldInfo]) -> None:
    """Raise ConfigError if a strategy of another package declares what is no plan option, or has no other default."""
    strategy = STRATEGIES[name]
    of = f"strategy {name!r} cannot be used: its"
    for kind in ("defaults", "ignores", "lacks"):
        wrong = sorted(set(getattr(strategy, kind)) - fields.keys())
        if wrong:
            raise ConfigError(f"{of} {kind} name {wrong[0]!r}, which is no plan option")
    for option, value in strategy.defaults.items():
        if default_of(fields[option], name) != value:
            raise ConfigError(f"{of} defaults name {option!r}, whose default is the same for all strategies")


def unsupported(name: str, config: Any) -> str | None:
    """The first of its `lacks`, as text, that is not at its default in the plan options; or None."""
    for option in sorted(STRATEGIES[name].lacks):
        value = getattr(config, option)
        if value != default_of(type(config).model_fields[option]):
            return f"--{option.replace('_', '-')} {value}"
    return None


def refusal(name: str, config: Any) -> str | None:
    """The error for the option that `unsupported` finds; None if there is none."""
    option = unsupported(name, config)
    if option is None:
        return None
    able = [other for other in STRATEGIES if unsupported(other, config) is None]
    return f"strategy {name} does not support {option}; leave that out, or choose one of {', '.join(able)}"
