"""Plan options that a strategy does not support."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from packer_cli.plan.strategies.registry import STRATEGIES


def unsupported(name: str, options: Mapping[str, Any]) -> str | None:
    """The first of these plan options, as text, that a strategy does not support; None if it supports all.

    Args:
        options: name and value of those that were given and differ from the default.
    """
    lacking = sorted(STRATEGIES[name].lacks & options.keys())
    return f"--{lacking[0].replace('_', '-')} {options[lacking[0]]}" if lacking else None


def refusal(name: str, options: Mapping[str, Any]) -> str | None:
    """The error for the option that `unsupported` finds; None if there is none."""
    option = unsupported(name, options)
    if option is None:
        return None
    able = [other for other in STRATEGIES if unsupported(other, options) is None]
    return f"strategy {name} does not support {option}; leave that out, or choose one of {', '.join(able)}"
