"""Arguments of the API's functions: checked by the config models, with one clear error for a wrong one."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, Union, cast

from pydantic import BaseModel

from packer_cli.config import GpuConfig, PlanConfig, TokenizeConfig, option_name, validate
from packer_cli.config.fields import shown_default
from packer_cli.errors import ConfigError, did_you_mean
from packer_cli.plan.strategies.registry import STRATEGIES
from packer_cli.plugins import Registry
from packer_cli.remote.path import as_path

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

StrPath = str | os.PathLike[str]
Lengths = Union["ArrayLike", StrPath]
"""int[n], tokens of each sample: a numpy array, a list, a column of pyarrow, pandas or polars; or the path or URL of a
file of lengths, of a token store, or of a packed set that keeps its tokens."""
Inputs = Lengths | Sequence[StrPath]
"""Lengths, or the paths of a corpus."""
F = TypeVar("F", bound=Callable[..., Any])

_OWN_ARGUMENTS = {"inputs", "format"}
"""Fields of models that have a parameter of their own."""


def takes(*models: type[BaseModel]) -> Callable[[F], F]:
    """Let a function take the options of these models by name: check the names, and show them in its signature.

    The function gets them by the names of the models' fields. None means that an option was not given.
    """
    fields = {name: field for model in models for name, field in model.model_fields.items()}
    shown = {python_name(name): field for name, field in fields.items() if name not in _OWN_ARGUMENTS}
    by_name = {name: field for field in fields for name in (python_name(field), field)}

    def decorate(function: F) -> F:
        signature = inspect.signature(function)
        own = [each for each in signature.parameters.values() if each.kind is not inspect.Parameter.VAR_KEYWORD]
        options = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=shown_default(field))
            for name, field in shown.items()
        ]
        own_names = {each.name: each.name for each in own}
        field_of = {**by_name, **own_names}

        @functools.wraps(function)
        def checked(*arguments: Any, **given: Any) -> Any:
            for name in given:
                if name not in field_of:
                    known = [*own_names, *shown]
                    near = did_you_mean(name, known) or f"; it has {', '.join(sorted(known))}"
                    raise ConfigError(f"{function.__name__}() has no option {name!r}{near}")
            return function(*arguments, **{field_of[name]: _plain(name, value) for name, value in given.items()})

        checked.__signature__ = signature.replace(parameters=[*own, *options])  # type: ignore[attr-defined]
        return cast("F", checked)

    return decorate


def python_name(field: str) -> str:
    """Return the name of an option in Python: its name on the command line, with `_`."""
    return option_name(field).removeprefix("--").replace("-", "_")


def _plain(option: str, value: Any) -> Any:
    """Convert a value for models: a path to text, a numpy number to Python's, a strategy or packing to its name."""
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if option in ("strategy", "packing") and (callable(value) or hasattr(value, "name")):
        from packer_cli.plan.packing import REGISTRY  # Loads numba.

        registry: Registry[Any] = STRATEGIES if option == "strategy" else REGISTRY
        return registry.add(value)
    return value.item() if hasattr(value, "dtype") and hasattr(value, "item") and not value.shape else value


def listed(option: str, value: Any) -> str | None:
    """Write the text that names several strategies or packings, from a list that may hold objects, too."""
    if value is None or isinstance(value, str):
        return value
    names = [_plain(option, each) for each in (value if isinstance(value, (list, tuple)) else [value])]
    wrong = [each for each in names if not isinstance(each, str)]
    if wrong:
        raise ConfigError(f"{wrong[0]!r} names no {option}; give names, or objects of {option} type")
    return ",".join(names)


def refuse_given(options: Mapping[str, Any], fields: Iterable[str], why: Callable[[str], str]) -> None:
    """Raise ConfigError if one of these fields was given; `why` gets the name of the option."""
    for name in fields:
        if options.get(name) is not None:
            raise ConfigError(why(option_name(name)))


def corpus_of(inputs: Any, options: Mapping[str, Any]) -> TokenizeConfig | None:
    """Check the options that tokenize the inputs; return None without `tokenizer`, for inputs that are no corpus.

    Raises:
        ConfigError: a value is wrong, or options for a corpus were given without a tokenizer.
    """
    if options.get("tokenizer") is not None:
        if not is_paths(inputs):
            raise ConfigError("--tokenizer is for a corpus; lengths have no text, so leave it out")
        return validate(TokenizeConfig, {**options, "inputs": path_names(inputs)})
    of_corpus = [name for name in TokenizeConfig.model_fields if name not in _OWN_ARGUMENTS]
    refuse_given(options, of_corpus, lambda name: f"{name} is for a corpus; give --tokenizer with it, or leave it out")
    return None


def plan_config_of(options: Mapping[str, Any]) -> PlanConfig | None:
    """Check the options that plan lengths; return None without any, for lengths alone and for sets with a plan.

    Raises:
        ConfigError: a value is wrong, or there are options of a plan without its groups and GPUs.
    """
    name = options.get("strategy")
    strategy = STRATEGIES.get(name) if isinstance(name, str) else None  # The config refuses an unknown one.
    has_groups = options.get("groups") is not None or (strategy is not None and "groups" in strategy.defaults)
    missing = [] if has_groups else ["--groups"]
    missing += ["--gpus"] if options.get("gpus") is None else []
    if not missing:
        return validate(PlanConfig, options)
    also, them = ("also ", "it") if len(missing) == 1 else ("", "them")
    needs = f"is for planning lengths, which {also}needs {' and '.join(missing)}; give {them}"
    of_plan = [each for each in PlanConfig.model_fields if each not in GpuConfig.model_fields]
    refuse_given(options, of_plan, lambda name: f"{name} {needs}, or leave {name} out")
    return None


def is_paths(inputs: Any) -> bool:
    """Whether inputs are a path, or a list or tuple of paths, and not lengths; an empty list is one of lengths."""
    names = inputs if isinstance(inputs, (list, tuple)) else [inputs]
    return all(isinstance(each, (str, os.PathLike)) for each in names) if len(names) else isinstance(names, tuple)


def path_names(inputs: Any) -> tuple[str, ...]:
    """Write one path or several as text."""
    return tuple(map(os.fspath, inputs if isinstance(inputs, (list, tuple)) else [inputs]))


def one_path(inputs: Any, function: str) -> Path:
    """Return the only path of inputs.

    Raises:
        ConfigError: there are several.
    """
    names = path_names(inputs)
    if len(names) != 1:
        raise ConfigError(f"{function}() takes one path, got {len(names)}; pack() and compare() take several")
    return as_path(names[0])
