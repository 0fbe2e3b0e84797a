"""Plan options that a strategy does not support."""

from __future__ import annotations

from typing import Any

from packer_cli.config.defaults import default_of
from packer_cli.plan.strategies.registry import STRATEGIES


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
