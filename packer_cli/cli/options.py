"""Click options generated from the fields of a config model: options, YAML, schema and docs have one definition."""

from __future__ import annotations

import typing
from collections.abc import Callable, Collection
from types import NoneType
from typing import Annotated, Any, Literal

import click
from click.core import ParameterSource
from pydantic import BaseModel, WithJsonSchema
from pydantic.fields import FieldInfo

from packer_cli.cli.command import Choice, Option, option
from packer_cli.cli.param_types import (
    FiniteRange,
    OutputFolder,
    Text,
    Value,
    balances,
    curricula,
    gpus,
    packings,
    shapes,
    strategies,
    words_of,
)
from packer_cli.config import AUTO, load_config_file, show_value
from packer_cli.config.defaults import REQUIRED, default_of, shown_default
from packer_cli.errors import ConfigError, did_you_mean
from packer_cli.panels import Panel

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

_NAMES = {"record_schema": "schema"}
_NO_OPTIONS = {"inputs"}
_SHOWN_AFTER = {"align": "max_samples"}
"""Options that the model reads before others; the help begins with what everyone gives."""
_METAVARS = {
    "tokenizer": "PATH",
    "groups": "GROUPS",
    "align": "N|N*cp[,...]",
    "strategy": "NAME",
    "packing": "NAME[:OPTION=VALUE,...]",
    "balance": "RULE",
    "curriculum": "NAME[:START]",
    "cost": "quadratic|profile|A,B",
    "cp_sharding": "sequence|document|static|auto[:rho=R]",
    "chat_template": "FILE|NAME",
    "eos_token": "TOKEN",
    "loss_on": "PART[+PART]",
    "global_tokens": "TOKENS",
    "shard_size": "BYTES",
    "max_record_bytes": "BYTES",
    "model": "PATH",
    "gpu": "NAME[:KEY=VALUE,...]",
    "max_length": "TOKENS",
    "profile": "FILE",
    "validation": "SHARE%|N",
    "parallel": "tp=N,cp=N,pp=N,vpp=N",
    "assume": "KEY=VALUE[,...]",
}
_REGISTRIES = {
    "strategy": strategies,
    "record_schema": shapes,
    "packing": packings,
    "balance": balances,
    "curriculum": curricula,
    "gpu": gpus,
    "groups": lambda: ["auto"],
}
"""What a shell completes options with whose metavar does not say it."""


class _FromModel(Option):
    """An option whose default the help shows and the model fills in, so that the model knows what was given.

    Args:
        is_needed: the model refuses to be without it.
    """

    def __init__(self, *args: Any, is_needed: bool = False, **kwargs: Any) -> None:
        self._is_needed = is_needed
        super().__init__(*args, **kwargs)

    def get_help_extra(self, ctx: click.Context) -> Any:
        """What the help says of it in brackets."""
        extra = super().get_help_extra(ctx)
        return {**extra, "required": "required"} if self._is_needed else extra

    def get_default(self, ctx: click.Context, call: bool = True) -> Any:
        """Return the default for the help, which does not call it; None for the value."""
        return None if call else super().get_default(ctx, call=False)


def model_options(
    model: type[BaseModel], names: Collection[str] | None = None, *, is_optional: bool = False
) -> Decorator:
    """Options for the named fields of a model, or for all except `inputs`.

    Args:
        is_optional: the command can do without what the model needs.
    """
    chosen = [name for name in model.model_fields if name not in _NO_OPTIONS and (names is None or name in names)]
    for name, other in _SHOWN_AFTER.items():
        if {name, other} <= set(chosen):
            chosen.remove(name)
            chosen.insert(chosen.index(other) + 1, name)

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        for name in reversed(chosen):
            function = _option(name, model.model_fields[name], is_optional)(function)
        return function

    return decorate


def output_option(text: str, *, required: bool = True) -> Decorator:
    """`--output FOLDER`; `text` is its help."""
    return option("--output", "-o", type=OutputFolder(), required=required, metavar="FOLDER", help=text)


def bound_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """`--bound`: how the least number of packs is proved."""
    return option(
        "--bound",
        type=Choice(["l2", "lp"]),
        default="l2",
        show_default=True,
        panel=Panel.PACKING,
        help="Proof of the least number of packs: `l2` uses sizes alone (Martello and Toth's L2); `lp` also solves "
        "the linear program of cutting stock where a plan has more packs than that, which takes up to 60 seconds for "
        "each group of each plan.",
    )(function)


def config_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """`--config FILE.yaml`: any option of the command, by its long name. The command line wins.

    One file may serve several commands: each takes the options that it has.
    """
    return option(
        "--config",
        metavar="FILE",
        type=Text(),
        is_eager=True,
        expose_value=False,
        callback=_load_config,
        help="YAML file holding any of these options by their long names; the command line wins. Options of other "
        "commands are skipped, so one file may serve several.",
    )(function)


def is_typed(name: str) -> bool:
    """Whether an option of the running command stands on the command line. In a config file, it may be for another."""
    return click.get_current_context().get_parameter_source(name) is ParameterSource.COMMANDLINE


def workers_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """`--workers N`."""
    return option(
        "--workers",
        type=click.IntRange(1, 4096),
        default=None,
        show_default="CPUs",
        metavar="N",
        panel=Panel.SCALE,
        help="Worker processes. The result is the same for any number.",
    )(function)


def engine_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """`--engine NAME`."""
    return option(
        "--engine",
        default="local",
        show_default=True,
        metavar="local|ray|ray:ADDRESS",
        type=Text(lambda: ("local", "ray")),
        panel=Panel.SCALE,
        help="Where the work runs: `local`, the processes of this machine; `ray`, the Ray cluster of RAY_ADDRESS, or "
        "one that is started on this machine; `ray:HOST:PORT`, another cluster. The result is the same for all.",
    )(function)


def shard_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """`--shard I/N`."""
    return option(
        "--shard",
        metavar="I/N",
        panel=Panel.SCALE,
        help="As a task of a job array, make share I of N, counted from 0. The last task to end completes the output, "
        "which is the same for any N; 0/1 is an ordinary run.",
        show_default="Slurm's SLURM_ARRAY_TASK_ID and _COUNT; Kubernetes' JOB_COMPLETION_INDEX, with the N that "
        "another task gave",
    )(function)


def set_tokenizer_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """`--tokenizer PATH`, of a set that names its own."""
    return option(
        "--tokenizer",
        metavar="PATH",
        type=Text(),
        help="Where the set's tokenizer is now.",
        show_default="where it was when the set was made",
    )(function)


def inputs_argument(function: Callable[..., Any]) -> Callable[..., Any]:
    """`INPUT...`."""
    return click.argument("inputs", metavar="INPUT...", nargs=-1, type=Text())(function)


def _option(name: str, field: FieldInfo, is_optional: bool) -> Decorator:
    flag = "--" + _NAMES.get(name, name).replace("_", "-")
    text = " ".join((field.description or "").split())
    panel = next((item for item in field.metadata if isinstance(item, Panel)), Panel.MAIN)
    default = shown_default(field)
    if field.annotation is bool:
        declaration = f"{flag}/--no-{flag[2:]}"
        return click.option(
            declaration, name, cls=_FromModel, panel=panel, default=default, show_default=True, help=text
        )
    choices, names = _choices(field.annotation), _own_names(field)
    kind: click.ParamType[Any] = Choice(choices) if choices else _kind(name)
    metavar = _METAVARS.get(name) or (f"[{'|'.join(names)}]" if names else "N")
    if _METAVARS.get(name) == "BYTES":
        default = f"{default >> 20}MiB"
    return click.option(
        flag,
        name,
        type=kind,
        cls=_FromModel,
        panel=panel,
        is_needed=default_of(field) is REQUIRED and not is_optional,
        default=None if default is None else str(default),
        show_default=default is not None,
        metavar=None if choices else metavar,
        help=text,
    )


def _kind(name: str) -> Value:
    metavar = _METAVARS.get(name, "N")
    if metavar in ("PATH", "FILE", "FILE|NAME"):
        return Value()
    return Value(_REGISTRIES.get(name, words_of(metavar)))


def _own_names(field: FieldInfo) -> list[str]:
    """Of an option that also takes names of other packages."""
    of = next((each.json_schema for each in field.metadata if isinstance(each, WithJsonSchema)), None) or {}
    return list(of.get("anyOf", [{}])[0].get("enum", ()))


def _choices(annotation: Any) -> list[str]:
    if typing.get_origin(annotation) is Literal:
        return list(typing.get_args(annotation))
    given = [each for each in typing.get_args(annotation) if each is not NoneType]
    is_optional = len(given) == 1 and typing.get_origin(annotation) is not Annotated
    return _choices(given[0]) if is_optional else []


def _load_config(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
    if value is None:
        return
    known = _configurable(ctx.command)
    defaults: dict[str, Any] = {}
    for key, item in load_config_file(value).items():
        parameter = known.get(key)
        if parameter is None and key in _of_other_commands(ctx):
            continue
        if parameter is None:
            options = sorted({_config_names(each)[0].replace("_", "-") for each in known.values()})
            key = key.replace("_", "-")
            hint = did_you_mean(key, options) or f"; it has {', '.join(options)}"
            raise ConfigError(f"config file {value!r}: {ctx.info_name} has no option {key!r}{hint}")
        assert parameter.name
        if item is not None:
            defaults[parameter.name] = _from_yaml(parameter, item, f"config file {value!r}: {key.replace('_', '-')}")
    ctx.default_map = defaults


def _configurable(command: click.Command) -> dict[str, click.Parameter]:
    """What a config file can set, by all of its names; nothing where the command takes no such file."""
    if not any(parameter.name == "config" for parameter in command.params):
        return {}
    return {name: parameter for parameter in command.params for name in _config_names(parameter)}


def _of_other_commands(ctx: click.Context) -> set[str]:
    group = ctx.parent.command if ctx.parent else None
    if not isinstance(group, click.Group):
        return set()
    commands = filter(None, (group.get_command(ctx, name) for name in group.list_commands(ctx)))
    return {name for command in commands for name in _configurable(command)}


def _config_names(parameter: click.Parameter) -> list[str]:
    """The names of an option in a config file, the usual one first; empty if a config file cannot set it."""
    if parameter.name in ("config", "help"):
        return []
    if isinstance(parameter, click.Argument):
        return [str(parameter.name)]
    return [option[2:].replace("-", "_") for option in parameter.opts if option.startswith("--")]


def _from_yaml(parameter: click.Parameter, item: Any, where: str) -> Any:
    """Convert a value from a config file into the form that click expects; the model validates the rest."""
    if parameter.name == "inputs":
        items = item if isinstance(item, list) else [item]
        if not all(isinstance(each, str) for each in items):
            raise ConfigError(f"{where} must be a path or a list of paths, got {show_value(item)}")
        return items
    if isinstance(parameter.type, click.Choice) and isinstance(item, bool):
        raise ConfigError(f"{where} must be one of {', '.join(parameter.type.choices)}, got {str(item).lower()}")
    is_flag = isinstance(parameter, click.Option) and parameter.is_flag
    if is_flag != isinstance(item, bool):
        rule = "must be true or false" if is_flag else "takes a value, not true or false"
        raise ConfigError(f"{where} {rule}, got {str(item).lower() if isinstance(item, bool) else show_value(item)}")
    if is_flag or isinstance(parameter.type, Value):
        return item
    if parameter.metavar == _METAVARS["groups"] and (isinstance(item, (list, dict)) or item == AUTO):
        return None  # How to plan groups. `hbpack export` chooses among those of a set.
    if isinstance(item, (list, dict)):
        raise ConfigError(f"{where} must be a single value, got {show_value(item)}")
    return str(item)


def training_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """`--pad-to` and `--step-seconds`: how a plan is trained, for predictions."""
    step_seconds = option(
        "--step-seconds",
        type=FiniteRange(min=0, max=86_400),
        default=0.0,
        show_default=True,
        panel=Panel.GROUPS,
        metavar="S",
        help="Fixed seconds of each optimizer step: gradient sync and optimizer.",
    )
    pad_to = option(
        "--pad-to",
        type=Choice(["multiple", "row", "capacity"]),
        default="multiple",
        show_default=True,
        panel=Panel.GROUPS,
        help="What the loader pads rows to.",
    )
    return pad_to(step_seconds(function))
