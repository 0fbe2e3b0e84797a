"""`hbpack stats`."""

from __future__ import annotations

import json
from typing import Any, Literal

import click

from packer_cli.api.stats import stats
from packer_cli.cli.options import bound_option, config_option, model_options
from packer_cli.config import PlanConfig


@click.command("stats")
@click.argument("path", metavar="PATH")
@click.option(
    "--json", "as_json", is_flag=True, help="JSON with the keys counts, overall, groups, baseline and masks."
)
@bound_option
@model_options(PlanConfig)
@config_option
def command(path: str, as_json: bool, bound: Literal["l2", "lp"], **values: Any) -> None:
    """Report balance, padding and communication of a packed set, a token store or lengths.

    PATH is a packed data set or a plan, reported as it is; or a token store or a file of lengths (.npy, or text with
    one integer a line), planned in memory with the options below. Of these two, only lengths are reported without
    --groups and --gpus; --strategy wlb needs --gpus alone.
    """
    found = stats(path, bound=bound, **values)
    from packer_cli.cli.tables.plan import print_counts, print_lengths, print_masks, print_stats

    if as_json:
        click.echo(json.dumps(found.values(), indent=2))
        return
    if found.lengths:
        print_lengths(found.lengths)
    if found.plan:
        print_counts(found.plan.counts)
        print_stats(found.plan.metrics)
        print_masks([*(group.name for group in found.plan.metrics.groups), "all"], found.plan.masks, found.plan.mask)
