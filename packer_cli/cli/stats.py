"""`hbpack stats`."""

from __future__ import annotations

import json
from typing import Any

import click

from packer_cli.cli.command import Command, json_option
from packer_cli.cli.console import say_next, shown_command
from packer_cli.cli.options import bound_option, config_option, model_options
from packer_cli.cli.param_types import Text
from packer_cli.config import PlanConfig, validate
from packer_cli.config.strategies import STRATEGIES
from packer_cli.errors import ConfigError
from packer_cli.panels import Panel
from packer_cli.remote.names import as_path
from packer_cli.sizes import counted


@click.command(
    "stats",
    cls=Command,
    examples="""
    hbpack stats OUT
    # The same samples in another plan, without writing it
    hbpack stats OUT --groups 8k:4 --gpus 16
    """,
)
@click.argument("path", metavar="PATH", type=Text())
@json_option("stats", Panel.OUTPUT)
@bound_option
@model_options(PlanConfig, is_optional=True)
@config_option
def command(path: str, as_json: bool, bound: str, **values: Any) -> None:
    """Report balance, padding and communication of a packed set, a token store or lengths.

    PATH is a packed data set or a plan, reported as it is; or a token store or a file of lengths (.npy, or text with
    one integer a line), planned in memory with the options below. Of these two, only lengths are reported without
    --groups and --gpus; --strategy wlb needs --gpus alone.
    """
    strategy = STRATEGIES.get(values["strategy"] or "")  # The config refuses an unknown one.
    has_groups = values["groups"] is not None or (strategy is not None and "groups" in strategy.defaults)
    if values["gpus"] is None and values["groups"] is None and has_groups:
        raise ConfigError(
            f"--strategy {values['strategy']} needs --gpus to plan; leave both out for the lengths alone"
        )
    if not has_groups and values["gpus"] is None:
        config = None
    elif not has_groups or values["gpus"] is None:
        raise ConfigError("--groups and --gpus go together; give both, or neither for the lengths alone")
    else:
        config = validate(PlanConfig, values)
    from packer_cli.cli.tables.plan import print_counts, print_lengths, print_masks, print_stats
    from packer_cli.stages.stats import stats_of

    stats = stats_of(as_path(path), config, by_program=bound == "lp")
    if as_json:
        click.echo(json.dumps(stats.values(), indent=2))
        return
    if stats.lengths:
        print_lengths(stats.lengths)
    if stats.plan:
        print_counts(stats.plan.counts)
        print_stats(stats.plan.metrics)
        print_masks([*(group.name for group in stats.plan.metrics.groups), "all"], stats.plan.masks, stats.plan.mask)
        overall = stats.plan.metrics.overall
        what = f"{counted(overall.num_packs, 'pack')} in {counted(overall.num_iterations, 'iteration')}"
        if config is None:
            say_next(what, f"{shown_command('hbpack', 'simulate', path)} --model CONFIG.JSON --gpu NAME")
        else:
            say_next(f"{what}, not written", "hbpack pack or hbpack plan with the same options")
    elif stats.lengths:
        what = f"{counted(stats.lengths.num_samples, 'sample')}, {counted(stats.lengths.num_tokens, 'token')}"
        say_next(what, f"{shown_command('hbpack', 'groups', path)} --model CONFIG.JSON --gpu NAME --gpus N")
