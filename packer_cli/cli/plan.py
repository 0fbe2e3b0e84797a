"""`hbpack plan`."""

from __future__ import annotations

from typing import Any

import click

from packer_cli.cli.options import config_option, model_options, output_option
from packer_cli.config import PlanConfig, validate
from packer_cli.remote.names import as_path


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
    config = validate(PlanConfig, values)
    from packer_cli.cli.tables.plan import print_counts, print_stats
    from packer_cli.stages.plan import run_plan

    header = run_plan(config, as_path(store), as_path(output or store))
    print_counts(header.counts)
    print_stats(header.metrics)
