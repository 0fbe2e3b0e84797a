"""`hbpack groups`."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import click

from packer_cli.cli.options import (
    config_option,
    corpus_of,
    inputs_argument,
    model_options,
    workers_option,
)
from packer_cli.config import AUTO, AutoGroupsConfig, PlanConfig, TokenizeConfig, validate
from packer_cli.config.strategies import STRATEGIES
from packer_cli.errors import ConfigError

_OF_PLAN = {"strategy", "gpus", "overflow", "global_tokens", "seed"}
_OF_CHOICE = set(AutoGroupsConfig.model_fields) - {"group_algorithm"}


@click.command("groups")
@inputs_argument
@model_options(PlanConfig, _OF_PLAN | _OF_CHOICE)
@click.option(
    "--group-algorithm",
    "--algorithm",
    "group_algorithm",
    type=click.Choice(["search", "hbp"]),
    default="search",
    show_default=True,
    help=PlanConfig.model_fields["group_algorithm"].description,
)
@click.option("--json", "as_json", is_flag=True, help="JSON with the choice, its alternatives and the candidates.")
@model_options(TokenizeConfig)
@workers_option
@config_option
@click.pass_context
def command(ctx: click.Context, as_json: bool, workers: int | None, **values: Any) -> None:
    """Find the length groups with the shortest epoch for your lengths, model and GPUs.

    INPUT is a file of lengths (.npy, or text with one integer a line), a token store, or a packed data set that keeps
    its tokens; or, with --tokenizer, a corpus as `hbpack pack` takes it. Nothing is kept.

    Times and memory are predicted from the model's shape and the GPU's data sheet (--model, --gpu), or from what
    `hbpack profile` measured (--profile). `hbpack pack --groups auto` with the same options packs with these groups.

    With --strategy hydraulis and --global-tokens, find the layouts of pipelines that its steps choose from. Other
    strategies take their groups as they are found without --strategy.
    """
    config = validate(PlanConfig, {**values, "groups": AUTO})
    corpus = corpus_of(ctx, values)
    if STRATEGIES[config.strategy].plans_steps:
        for option in ("group_algorithm", "max_groups"):
            if getattr(config, option) != PlanConfig.model_fields[option].default:
                raise ConfigError(
                    f"--{option.replace('_', '-')} has no effect on hbpack groups --strategy {config.strategy}, which "
                    "finds pipelines and layouts instead of groups; leave it out"
                )
        from packer_cli.cli.tables.layouts import print_layouts
        from packer_cli.stages.groups import run_layouts

        layouts = run_layouts(values["inputs"], corpus, config, workers)
        if as_json:
            click.echo(json.dumps(layouts.values(), indent=2))
            return
        print_layouts(layouts)
        return
    if config.strategy != "balanced":
        raise ConfigError(
            f"--strategy {config.strategy} has no effect on hbpack groups, which finds the same groups for all "
            "strategies but hydraulis; leave it out"
        )
    if config.global_tokens is not None:
        raise ConfigError("--global-tokens has no effect on hbpack groups without --strategy hydraulis; leave it out")
    from packer_cli.cli.tables.groups import candidates, print_choice
    from packer_cli.stages.groups import run_groups

    choice, record = run_groups(values["inputs"], corpus, config, workers)
    if as_json:
        click.echo(json.dumps({**asdict(record), "candidates": candidates(choice)}, indent=2))
        return
    print_choice(choice, record)
