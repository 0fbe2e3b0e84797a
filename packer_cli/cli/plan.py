"""`hbpack plan`."""

from __future__ import annotations

from typing import Any

import click

from packer_cli.api.plan import plan
from packer_cli.cli.options import config_option, model_options, output_option
from packer_cli.config import PlanConfig


@click.command("plan")
@click.argument("store", metavar="FOLDER")
@output_option("Where the plan and its shards go; by default FOLDER itself.", required=False)
@model_options(PlanConfig)
@config_option
def command(store: str, output: str | None, **values: Any) -> None:
    """Plan a token store: groups, packs, iterations and steps.

    FOLDER is the output of `hbpack tokenize` or `hbpack pack`. Nothing is tokenized again, so other groups or another
    number of GPUs take seconds. `hbpack write` makes the shards.
    """
    made = plan(store, output=output or store, **values)
    from packer_cli.cli.tables.plan import print_counts, print_stats

    print_counts(made.counts)
    print_stats(made.metrics)
