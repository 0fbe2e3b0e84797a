"""Defaults of options, some of which differ with the strategy, and options that a strategy does not support."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pydantic import Field
from pydantic.fields import FieldInfo

from packer_cli.errors import ConfigError
from packer_cli.plan.strategies.protocol import NOT_FOR_ALL
from packer_cli.plan.strategies.registry import DEFAULT, PACKED, STRATEGIES

REQUIRED: Final = object()
"""Value in place of a default, for an option that has none."""


OF_TREES: Final = {"packing": "isf", "max_path_tokens": "2x"}
"""Options whose usual default is another for samples that share prefixes, with that default."""


class _OfStrategy:
    """A default that differs with the strategy; the field `strategy` is validated before."""

    def __init__(self, name: str, usual: Any) -> None:
        self.name, self.usual = name, usual

    def __call__(self, data: Mapping[str, Any]) -> Any:
        return self.of(data.get("strategy", DEFAULT), self.usual)

    def of(self, strategy: str, usual: Any) -> Any:
        found = STRATEGIES.get(strategy)  # None for a plan whose package is not installed here.
        return usual if found is None else found.defaults.get(self.name, usual)


def by_strategy(name: str, usual: Any, **rules: Any) -> Any:
    """Make the `Field` of an option for which strategies have defaults of their own.

    Args:
        usual: the default of all other strategies; `REQUIRED` for none.
        rules: arguments of pydantic's `Field`.
    """
    shown = None if usual is REQUIRED else {"default": usual}
    return Field(default_factory=_OfStrategy(name, usual), validate_default=True, json_schema_extra=shown, **rules)


def default_of(field: FieldInfo, strategy: str = DEFAULT, *, of_trees: bool = False) -> Any:
    """Return the default of a field with a strategy; `REQUIRED` if there is none.

    Args:
        of_trees: whether samples share prefixes.
    """
    default = field.default_factory
    if isinstance(default, _OfStrategy):
        return default.of(strategy, OF_TREES.get(default.name, default.usual) if of_trees else default.usual)
    return REQUIRED if field.is_required() else field.default


def shown_default(field: FieldInfo) -> Any:
    """Return the usual default of a field; None if there is none."""
    default = default_of(field)
    return None if default is REQUIRED else default


def require_declared(name: str, fields: Mapping[str, FieldInfo]) -> None:
    """Raise ConfigError if another package's strategy declares what is no plan option, or has no other default."""
    strategy = STRATEGIES[name]
    of = f"strategy {name!r} cannot be used: its"
    for kind in ("defaults", "ignores", "supports"):
        wrong = sorted(set(getattr(strategy, kind)) - fields.keys())
        if wrong:
            raise ConfigError(f"{of} {kind} name {wrong[0]!r}, which is not a plan option")
    for option, value in strategy.defaults.items():
        if default_of(fields[option], name) != value:
            raise ConfigError(f"{of} defaults name {option!r}, whose default is the same for all strategies")


def unsupported(name: str, config: Any) -> str | None:
    """Write the first option that is not at its default and that a strategy does not support; None without one."""
    for option in sorted(NOT_FOR_ALL - STRATEGIES[name].supports):
        value = getattr(config, option)
        if option == "align" and value is None:  # Plans record it with their groups.
            value = next((group.align for group in config.groups if group.align > 1), None)
        if value != default_of(type(config).model_fields[option], config.strategy):
            return f"--{option.replace('_', '-')} {value}"
    return None


def refusal(name: str, option: str, config: Any) -> str:
    """Write the error for the option that `unsupported` found."""
    able = [other for other in PACKED if unsupported(other, config) is None]
    return f"strategy {name} does not support {option}; leave that out, or choose one of {', '.join(able)}"
