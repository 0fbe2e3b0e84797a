"""Click options generated from the fields of a config model: options, YAML, schema and docs have one definition."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, Literal, get_args, get_origin

import click
from click.core import ParameterSource
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from packer_cli.cli.command import (
    Choice,
    F,
    Folder,
    LocalPath,
    Option,
    OutputFolder,
    Text,
    all_commands,
    option,
    words_of,
)
from packer_cli.config import AUTO, TokenizeConfig, option_name
from packer_cli.config.fields import REQUIRED, default_of, shown_default
from packer_cli.config.messages import load_config_file, show_value
from packer_cli.config.models import EngineConfig, JobConfig, WorkersConfig
from packer_cli.errors import ConfigError, did_you_mean
from packer_cli.panels import Panel, Shown
from packer_cli.sizes import parse_seconds


class _FromModel(Option):
    """An option whose default the help shows and the model fills in, so that the model knows what was given.

    Args:
        is_needed: whether the model refuses to be without the option.
    """

    def __init__(self, *args: Any, is_needed: bool = False, **kwargs: Any) -> None:
        self._is_needed = is_needed
        super().__init__(*args, **kwargs)

    def get_help_extra(self, ctx: click.Context) -> Any:
        """Return the option's notes in brackets in the help."""
        extra = super().get_help_extra(ctx)
        return {**extra, "required": "required"} if self._is_needed else extra

    def get_default(self, ctx: click.Context, call: bool = True) -> Any:
        """Return the default for the help, which does not call it; None for the value."""
        return None if call else super().get_default(ctx, call=False)


def model_options(
    model: type[BaseModel], names: Collection[str] | None = None, *, is_optional: bool = False
) -> Callable[[F], F]:
    """Make options for the fields of a model that are `Shown`, or for the named ones of them.

    Args:
        is_optional: whether the command can do without the fields that the model needs.
    """

    def decorate(function: F) -> F:
        for name, field in reversed(model.model_fields.items()):
            shown = next((each for each in field.metadata if isinstance(each, Shown)), None)
            if shown is not None and (names is None or name in names):
                function = _option(name, field, shown, is_optional=is_optional)(function)
        return function

    return decorate


def output_option(text: str, *, required: bool = True) -> Callable[[F], F]:
    """Make the option `--output FOLDER`; `text` is its help."""
    return option("--output", "-o", type=OutputFolder(), required=required, metavar="FOLDER", help=text)


def is_typed(name: str) -> bool:
    """Whether the command line has this option; a config file may have an option for another command."""
    return click.get_current_context().get_parameter_source(name) is ParameterSource.COMMANDLINE


def _option(name: str, field: FieldInfo, shown: Shown, *, is_optional: bool) -> Callable[[F], F]:
    flag, default = option_name(name), shown_default(field)
    about: dict[str, Any] = {"panel": shown.panel, "is_common": shown.is_common, "help": field.description}
    if field.annotation is bool:
        return click.option(
            f"{flag}/--no-{flag[2:]}", name, cls=_FromModel, default=default, show_default=True, **about
        )
    choices, is_file = _choices(field.annotation), shown.metavar.startswith(("PATH", "FILE"))
    completed = shown.names or (None if is_file else words_of(shown.metavar))
    if default is not None:
        default = f"{default >> 20}MiB" if shown.metavar == "BYTES" else str(default)
    return click.option(
        flag,
        name,
        type=Choice(choices) if choices else Text(completed),
        cls=_FromModel,
        is_needed=default_of(field) is REQUIRED and not is_optional,
        default=default,
        show_default=default is not None,
        metavar=None if choices else shown.metavar,
        **about,
    )


def _choices(annotation: Any) -> list[str]:
    """List the values of a Literal that may be None; return an empty list for another type."""
    kinds = (annotation, *get_args(annotation))
    return [value for kind in kinds if get_origin(kind) is Literal for value in get_args(kind)]


def _load_config(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
    """YAML file with any of these options by their long names; the command line wins.

    Options of other commands are skipped, so one file can serve several.
    """
    if value is None:
        return
    known = _configurable(ctx.command)
    defaults: dict[str, Any] = {}
    for key, item in load_config_file(value).items():
        parameter = known.get(key)
        if parameter is None and any(key in _configurable(other) for other in all_commands(ctx).values()):
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
    """Find the parameters that a config file can set, by all their names; none if the command takes no such file."""
    if not any(parameter.name == "config" for parameter in command.params):
        return {}
    return {name: parameter for parameter in command.params for name in _config_names(parameter)}


def _config_names(parameter: click.Parameter) -> list[str]:
    """List the names of an option in a config file, the usual one first; none if a config file cannot set it."""
    if parameter.name in ("config", "help_all", "lists"):
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
    if is_flag or (isinstance(parameter, _FromModel) and not isinstance(parameter.type, click.Choice)):
        return item
    if parameter.name == "groups" and (isinstance(item, (list, dict)) or item == AUTO):
        return None  # How to plan groups. `hbpack export` chooses among those of a set.
    if isinstance(item, (list, dict)):
        raise ConfigError(f"{where} must be a single value, got {show_value(item)}")
    return str(item)


def _add_lists(ctx: click.Context, param: click.Parameter, value: tuple[str, ...]) -> tuple[str, ...]:
    """Add the lists of `--inputs` to the inputs of the command line."""
    lists = ctx.meta.get(param.name, ())
    is_of_file = ctx.get_parameter_source("inputs") is ParameterSource.DEFAULT_MAP
    return (*(() if lists and is_of_file else value), *(f"@{name}" for name in lists))


def _note_lists(ctx: click.Context, param: click.Parameter, value: tuple[str, ...]) -> None:
    """List of the files to read, as JSON lines with path, size, etag and xxh3; the same as INPUT @FILE.

    `hbpack init --list` writes one. A file that differs from the list is an error.
    """
    ctx.meta["inputs"] = value


def inputs_argument(function: F) -> F:
    """Add the argument `INPUT...`, and the option `--inputs FILE`, which is short for @FILE among the inputs."""
    names = option(
        "--inputs",
        "lists",
        multiple=True,
        is_eager=True,
        expose_value=False,
        callback=_note_lists,
        metavar="FILE",
        type=Text(),
        panel=Panel.TOKENS,
        is_common=False,
    )
    inputs = click.argument("inputs", metavar="INPUT...", nargs=-1, type=Text(), callback=_add_lists)
    return names(inputs(function))


set_argument = click.argument("folder", metavar="OUT", type=Folder())
path_argument = click.argument("path", metavar="PATH", type=Text())
workers_option = model_options(WorkersConfig)
engine_options = model_options(EngineConfig)


config_option = option(
    "--config",
    metavar="FILE",
    type=Text(),
    is_eager=True,
    expose_value=False,
    callback=_load_config,
)
"""Option for a config file. One file may serve several commands: each takes the options that it has."""


class _Duration(Text):
    """A duration, such as `5m`: seconds."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Read the text, or fail."""
        try:
            return parse_seconds(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


wait_option = option(
    "--wait",
    type=_Duration(lambda: ()),
    metavar="TIME",
    panel=Panel.SCALE,
    is_common=False,
    show_default="0",
    help="""Wait so long, such as 30s, 5m or 2h, for another run that writes to the folder.

    The lock of a run that was killed on another machine ends after 2 minutes.""",
)
"""Option of the commands that lock a folder; see `Command.invoke`."""


def job_options(function: F) -> F:
    """Add the options of a stage that may run in a job array, and `--config`."""
    return model_options(JobConfig)(wait_option(config_option(function)))


def corpus_options(function: F) -> F:
    """Add the options of a command whose inputs may be a corpus that it tokenizes first, and `--config`."""
    return model_options(TokenizeConfig, is_optional=True)(workers_option(config_option(function)))


def output_file_option(default: str | None, text: str, kind: type[Text] = LocalPath) -> Callable[[F], F]:
    """Make the option `--output FILE`, which is required without a default; `text` is its help."""
    found: Callable[[F], F] = option(
        "--output",
        "-o",
        type=kind(),
        required=default is None,
        default=default,
        show_default=default is not None,
        metavar="FILE",
        help=text,
    )
    return found
