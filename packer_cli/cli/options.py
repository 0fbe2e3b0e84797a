"""Click options generated from the fields of a config model: options, YAML, schema and docs have one definition."""

from __future__ import annotations

import difflib
import typing
from collections.abc import Callable, Collection
from typing import Any, Literal

import click
from click.core import ParameterSource
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from packer_cli.config import AutoGroupsConfig, TokenizeConfig, load_config_file, show_value, validate
from packer_cli.errors import ConfigError, InputError, OutputError

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

_NAMES = {"record_schema": "schema"}
_NO_OPTIONS = {"inputs", "group_costs", "attention_pieces"}
_SHOWN_AFTER = {"align": "max_samples"}
"""Options that the model reads before others; the help begins with what everyone gives."""
_METAVARS = {
    "tokenizer": "PATH",
    "groups": "GROUPS",
    "align": "N|N*cp",
    "packing": "NAME[:OPTION=VALUE,...]",
    "balance": "RULE",
    "curriculum": "NAME[:START]",
    "cost": "quadratic|profile|A,B",
    "cp_sharding": "sequence|document|auto[:rho=R]",
    "chat_template": "FILE",
    "loss_on": "PART[+PART]",
    "global_tokens": "TOKENS",
    "shard_size": "BYTES",
    "max_record_bytes": "BYTES",
    "model": "PATH",
    "gpu": "NAME[:KEY=VALUE,...]",
    "max_length": "TOKENS",
    "profile": "FILE",
}


class FiniteRange(click.FloatRange):
    """A range of floats that rejects NaN, which click's range accepts."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the number, or fail."""
        number = super().convert(value, param, ctx)
        if number != number:
            self.fail(f"{value} is not a number.", param, ctx)
        return number


class LocalPath(click.ParamType):
    """A path on this machine. A URL is refused: as a path, `s3://bucket/out` would be a local folder named `s3:`."""

    name = "path"

    def __init__(self, *, is_output: bool = False) -> None:
        self._is_output = is_output

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path unchanged, or fail."""
        text = str(value)
        if "://" in text and self._is_output:
            raise OutputError(f"{text}: hbpack writes local files; name a local path, and upload what is there")
        if "://" in text:
            raise InputError(f"{text}: hbpack reads local files; download it first")
        return value


class _OutputFolder(click.ParamType):
    """A folder or URL to write to. An empty name, as from an unset variable, is refused: it would mean the current
    folder."""

    name = "path"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the name unchanged, or fail."""
        if not str(value):
            self.fail("it is empty; name a folder, or '.' for the current one.", param, ctx)
        return value


class _Value(click.ParamType):
    """Text, or a value from a config file; the model validates it."""

    name = "text"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return value


class _FromModel(click.Option):
    """An option whose default the help shows and the model fills in, so that the model knows what was given."""

    def get_default(self, ctx: click.Context, call: bool = True) -> Any:
        """Return the default for the help, which does not call it; None for the value."""
        return None if call else super().get_default(ctx, call=False)


def model_options(model: type[BaseModel], names: Collection[str] | None = None) -> Decorator:
    """Options for the named fields of a model, or for all except `inputs`; those for `auto` groups come last."""
    chosen = [name for name in model.model_fields if name not in _NO_OPTIONS and (names is None or name in names)]
    for name, other in _SHOWN_AFTER.items():
        if {name, other} <= set(chosen):
            chosen.remove(name)
            chosen.insert(chosen.index(other) + 1, name)
    chosen.sort(key=lambda name: name in AutoGroupsConfig.model_fields)

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        for name in reversed(chosen):
            function = _option(name, model.model_fields[name])(function)
        return function

    return decorate


def output_option(text: str, *, required: bool = True) -> Decorator:
    """`--output FOLDER`; `text` is its help."""
    return click.option("--output", "-o", type=_OutputFolder(), required=required, metavar="FOLDER", help=text)


def bound_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """`--bound`: how the least number of packs is proved."""
    return click.option(
        "--bound",
        type=click.Choice(["l2", "lp"]),
        default="l2",
        show_default=True,
        help="Proof of the least number of packs: `l2` uses sizes alone (Martello and Toth's L2); `lp` also solves "
        "the linear program of cutting stock where a plan has more packs than that, which takes up to 60 seconds for "
        "each group of each plan.",
    )(function)


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
        type=click.IntRange(1, 4096),
        default=None,
        show_default="CPUs",
        help="Worker processes. The result is the same for any number.",
    )(function)


def engine_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """`--engine NAME`."""
    return click.option(
        "--engine",
        default="local",
        show_default=True,
        metavar="local|ray|ray:ADDRESS",
        help="Where the work runs: `local`, the processes of this machine; `ray`, the Ray cluster of RAY_ADDRESS, or "
        "a Ray of this machine; `ray:HOST:PORT`, another cluster. The result is the same for all.",
    )(function)


def shard_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """`--shard I/N`."""
    return click.option(
        "--shard",
        metavar="I/N",
        help="As a task of a job array, make share I of N, counted from 0. The last task to end completes the output, "
        "which is the same for any N; 0/1 is an ordinary run.  [default: Slurm's SLURM_ARRAY_TASK_ID and _COUNT; "
        "Kubernetes' JOB_COMPLETION_INDEX, with the N that another task gave]",
    )(function)


def inputs_argument(function: Callable[..., Any]) -> Callable[..., Any]:
    """`INPUT...`."""
    return click.argument("inputs", metavar="INPUT...", nargs=-1)(function)


def corpus_of(ctx: click.Context, values: dict[str, Any]) -> TokenizeConfig | None:
    """How to tokenize the inputs of a command; None without `--tokenizer`, for inputs that are no corpus.

    Raises:
        ConfigError: a value is wrong, or options for a corpus were given without a tokenizer.
    """
    if values["tokenizer"] is not None:
        config: TokenizeConfig = validate(TokenizeConfig, values)
        return config
    name = first_given(ctx, set(TokenizeConfig.model_fields) - {"inputs"})
    if name is not None:
        raise ConfigError(f"{name} is for a corpus; give --tokenizer with it, or leave it out")
    return None


def first_given(ctx: click.Context, names: Collection[str]) -> str | None:
    """The first of these options that is on the command line; None if there is none."""
    for parameter in ctx.command.params:
        if parameter.name in names and ctx.get_parameter_source(parameter.name) is ParameterSource.COMMANDLINE:
            return parameter.opts[0]
    return None


def _option(name: str, field: FieldInfo) -> Decorator:
    flag = "--" + _NAMES.get(name, name).replace("_", "-")
    text = " ".join((field.description or "").split())
    default = None if field.is_required() else field.default
    if field.annotation is bool:
        declaration = f"{flag}/--no-{flag[2:]}"
        return click.option(declaration, name, cls=_FromModel, default=default, show_default=True, help=text)
    choices = _choices(field.annotation)
    kind: click.ParamType = click.Choice(choices) if choices else _Value()
    if _METAVARS.get(name) == "BYTES":
        default = f"{field.default >> 20}MiB"
    return click.option(
        flag,
        name,
        type=kind,
        cls=_FromModel,
        default=None if default is None else str(default),
        show_default=default is not None,
        metavar=None if choices else _METAVARS.get(name, "N"),
        help=text,
    )


def _choices(annotation: Any) -> list[str]:
    return list(typing.get_args(annotation)) if typing.get_origin(annotation) is Literal else []


def _load_config(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
    if value is None:
        return
    known = {name: parameter for parameter in ctx.command.params for name in _config_names(parameter)}
    defaults: dict[str, Any] = {}
    for key, item in load_config_file(value).items():
        parameter = known.get(key)
        if parameter is None:
            options = sorted({_config_names(each)[0].replace("_", "-") for each in known.values()})
            key = key.replace("_", "-")
            near = difflib.get_close_matches(key, options, n=1, cutoff=0.7)
            hint = f"did you mean {near[0]!r}?" if near else f"it has {', '.join(options)}"
            raise ConfigError(f"config file {value!r}: {ctx.info_name} has no option {key!r}; {hint}")
        assert parameter.name
        if item is not None:
            defaults[parameter.name] = _from_yaml(parameter, item, f"config file {value!r}: {key.replace('_', '-')}")
    ctx.default_map = defaults


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
    if is_flag or isinstance(parameter.type, _Value):
        return item
    if isinstance(item, (list, dict)):
        raise ConfigError(f"{where} must be a single value, got {show_value(item)}")
    return str(item)
