"""`hbpack plan`."""

from __future__ import annotations

from typing import Any

import click

from packer_cli.cli.command import Folder, as_command, json_option
from packer_cli.cli.options import config_option, model_options, output_option, wait_option
from packer_cli.config import GpuConfig, StorePlanConfig, validate
from packer_cli.panels import Panel
from packer_cli.remote.path import as_path


@as_command()
@click.argument("store", metavar="FOLDER", type=Folder())
@output_option("Where the plan and its shards go; by default FOLDER itself.", required=False)
@model_options(StorePlanConfig, is_optional=True)
@json_option("output/set", Panel.OUTPUT)
@wait_option
@config_option
def command(store: str, output: str | None, **values: Any) -> None:
    """Plan a token store: groups, packs, iterations and steps.

    FOLDER is the output of `hbpack tokenize` or `hbpack pack`. Nothing is tokenized again, so other groups or another
    number of GPUs take seconds. `hbpack write` makes the shards.

    If FOLDER is planned already, options that you leave out are as they were; give only what changes. --validation,
    --global-tokens and --max-samples take 0 for none.

    Examples::

        hbpack plan STORE --groups 1k:1,8k:4 --gpus 8
        # Another plan of the same tokens, in a folder of its own
        hbpack plan STORE --groups 8k:4 --gpus 16 --strategy hbp --output HBP
        # The same plan on other GPUs
        hbpack plan STORE --gpus 4
    """
    folder = output or store
    from packer_cli.commands.plan import run_plan

    run_plan(values, as_path(store), as_path(folder))
    from packer_cli.cli.print_set import print_set

    print_set(folder, validate(GpuConfig, values))
