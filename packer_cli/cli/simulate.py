"""`hbpack simulate`."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from packer_cli.cli.command import Choice, Command, json_option, option
from packer_cli.cli.console import say_next, shown_command
from packer_cli.cli.options import (
    config_option,
    corpus_of,
    first_given,
    inputs_argument,
    model_options,
    workers_option,
)
from packer_cli.cli.param_types import FiniteRange, Text, columns
from packer_cli.config import GpuConfig, PlanConfig, TokenizeConfig, validate
from packer_cli.errors import ConfigError, InputError
from packer_cli.panels import Panel
from packer_cli.remote.names import as_path

if TYPE_CHECKING:
    from packer_cli.simulate.figures import SimulateRules


@click.command(
    "simulate",
    cls=Command,
    examples=r"""
    # A packed set, beside naive packing
    hbpack simulate OUT --model model --gpu h100
    # Several ways to pack the same samples
    hbpack simulate OUT --groups 1k:1,8k:4 --gpus 8 --algorithms bfs,isf/none \
        --model model --gpu h100
    """,
)
@inputs_argument
@model_options(PlanConfig, is_optional=True)
@option(
    "--pad-to",
    type=Choice(["multiple", "row", "capacity"]),
    default="multiple",
    show_default=True,
    help="What the loader pads rows to.",
)
@option(
    "--step-seconds",
    type=FiniteRange(min=0, max=86_400),
    default=0.0,
    show_default=True,
    metavar="S",
    help="Fixed seconds of each optimizer step: gradient sync and optimizer.",
)
@option(
    "--algorithms",
    metavar="ROW,...",
    help="Only these strategies, written as for hbpack compare, and the baseline.",
)
@option(
    "--sort",
    metavar="COLUMN",
    type=Text(columns),
    default="epoch",
    show_default=True,
    help="Sort by a column of hbpack compare; -COLUMN sorts in descending order.",
)
@json_option("simulate", Panel.OUTPUT)
@model_options(TokenizeConfig, is_optional=True)
@workers_option
@config_option
@click.pass_context
def command(
    ctx: click.Context,
    pad_to: Any,
    step_seconds: float,
    algorithms: str | None,
    sort: str,
    as_json: bool,
    workers: int | None,
    **values: Any,
) -> None:
    """Predict an epoch's time, where the GPUs' time goes, and the savings over naive packing.

    INPUT is a packed data set or a plan.arrow, which is predicted as it is. With --groups and --gpus, it is anything
    that `hbpack compare` takes; every strategy is planned and predicted, the fastest first.

    Times are predicted from the model's shape and the GPU's data sheet (--model, --gpu), or from what `hbpack profile`
    measured (--profile).
    """
    config = validate(GpuConfig, values)
    config.require_gpu_model("hbpack simulate")
    from packer_cli.simulate.figures import SimulateRules

    rules = SimulateRules(pad_to=pad_to, step_seconds=step_seconds)
    if values["groups"] is None:
        _simulate_plan(ctx, config, values, rules, as_json)
    else:
        _simulate_strategies(ctx, values, rules, algorithms, sort, workers, as_json)


def _simulate_plan(
    ctx: click.Context, config: GpuConfig, values: dict[str, Any], rules: SimulateRules, as_json: bool
) -> None:
    path = _planned(ctx, values)
    from packer_cli.cli.tables.simulate import print_plan_simulation
    from packer_cli.sizes import duration
    from packer_cli.stages.simulate import run_simulate

    result = run_simulate(path, config, rules)
    if as_json:
        click.echo(json.dumps(result.values(), indent=2))
        return
    print_plan_simulation(result)
    what = f"An epoch takes {duration(result.figures.overall.seconds)}, predicted"
    words = ("hbpack", "compare", path, "--strategies", "all")
    say_next(what, f"{shown_command(*words)} with the same options, --groups and --gpus")


def _simulate_strategies(
    ctx: click.Context,
    values: dict[str, Any],
    rules: SimulateRules,
    algorithms: str | None,
    sort: str,
    workers: int | None,
    as_json: bool,
) -> None:
    from packer_cli.cli.tables.compare import parse_sort, say_best, sort_rows
    from packer_cli.cli.tables.simulate import print_strategies
    from packer_cli.stages.compare import run_compare

    config = validate(PlanConfig, values)
    order = parse_sort(sort, has_cost=config.cost != "quadratic")
    corpus = corpus_of(ctx, values)
    result = run_compare(values["inputs"], corpus, config, algorithms, workers, rules)
    result = replace(result, rows=sort_rows(result.rows, order))
    if as_json:
        click.echo(json.dumps(result.values(), indent=2))
        return
    print_strategies(result)
    say_best(result)


def _planned(ctx: click.Context, values: dict[str, Any]) -> Path:
    """The path of the packed set or plan. Raises ConfigError for other inputs, and for options without effect."""
    needs = "--groups and --gpus"
    if len(values["inputs"]) != 1:
        raise ConfigError(
            f"several inputs are a corpus, which needs --tokenizer, {needs}"
            if values["inputs"]
            else "INPUT is required"
        )
    path = as_path(values["inputs"][0])
    if not path.exists():
        raise InputError(
            f"{str(path)!r} does not exist; name a packed data set or a plan, or what to plan with {needs}"
        )
    file = path / "plan.arrow" if path.is_dir() else path
    if file.suffix != ".arrow" or not file.exists():
        raise ConfigError(f"{str(path)!r} is not a packed data set or plan; give {needs} to plan it in every way")
    of_plans = {*PlanConfig.model_fields, *TokenizeConfig.model_fields, "algorithms", "sort", "workers"}
    name = first_given(ctx, of_plans - {*GpuConfig.model_fields, "inputs"})
    if name is not None:
        raise ConfigError(
            f"{name} is for making plans, and {str(path)!r} is planned; give {needs}, or leave {name} out"
        )
    return path
