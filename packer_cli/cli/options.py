"""Click options made from the fields of a config model: one definition for options, YAML, schema and docs."""

from __future__ import annotations

import typing
from collections.abc import Callable
from typing import Any, Literal

import click
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from packer_cli.config import load_config_file
from packer_cli.errors import ConfigError

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

_NAMES = {"record_schema": "schema"}
_METAVARS = {
    "tokenizer": "PATH",
    "groups": "GROUPS",
    "packing": "NAME[:OPTION=VALUE,...]",
    "chat_template": "FILE",
    "global_tokens": "TOKENS",
    "shard_size": "BYTES",
}


def model_options(model: type[BaseModel]) -> Decorator:
    """Options for all fields of a model except `inputs`."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        for name, field in reversed(model.model_fields.items()):
            if name != "inputs":
                function = _option(name, field)(function)
        return function

    return decorate


def config_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """`--config FILE.yaml`: any option of the command, by its long name. The command line wins."""
    return click.option(
        "--config",
        metavar="FILE",
        is_eager=True,
        expose_value=False,
        callback=_load_config,
        help="YAML file holding any of these options by their long names; the command line wins.",
    )(function)


def workers_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """`--workers N`."""
    return click.option(
        "--workers",
        type=click.IntRange(min=1),
        default=None,
        show_default="CPUs",
        help="Worker processes. The result is the same for any number.",
    )(function)


def inputs_argument(function: Callable[..., Any]) -> Callable[..., Any]:
    """`INPUT...`."""
    return click.argument("inputs", metavar="INPUT...", nargs=-1)(function)


def _option(name: str, field: FieldInfo) -> Decorator:
    flag = "--" + _NAMES.get(name, name).replace("_", "-")
    text = " ".join((field.description or "").split())
    default = None if field.is_required() else field.default
    if field.annotation is bool:
        declaration = f"{flag}/--no-{flag[2:]}"
        return click.option(declaration, name, default=default, show_default=True, help=text)
    choices = _choices(field.annotation)
    kind: click.ParamType = click.Choice(choices) if choices else click.STRING
    shown: bool | str = default is not None
    if name == "shard_size":
        default, shown = "256MiB", True
    return click.option(
        flag,
        name,
        type=kind,
        default=None if default is None else str(default),
        show_default=shown,
        metavar=None if choices else _METAVARS.get(name, "N"),
        help=text,
    )


def _choices(annotation: Any) -> list[str]:
    return list(typing.get_args(annotation)) if typing.get_origin(annotation) is Literal else []


def _load_config(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
    if value is None:
        return
    known = {parameter.name: parameter for parameter in ctx.command.params}
    defaults: dict[str, Any] = {}
    for key, item in load_config_file(value).items():
        name = {short: long for long, short in _NAMES.items()}.get(key, key)
        if name not in known or name in ("config", "help"):
            options = ", ".join(sorted(parameter.opts[-1] for parameter in ctx.command.params if parameter.opts))
            raise ConfigError(f"config file {value!r}: {ctx.info_name} has no option {key!r}; it has {options}")
        if name != "inputs" and isinstance(item, list):
            item = ",".join(str(part) for part in item)
        if name == "inputs" and isinstance(item, str):
            item = [item]
        defaults[name] = item
    ctx.default_map = defaults
