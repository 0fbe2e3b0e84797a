"""`hbpack write`."""

from __future__ import annotations

from typing import Any

import click

from packer_cli.cli.command import Folder, as_command, json_option
from packer_cli.cli.console import say_set, say_share, wants_json
from packer_cli.cli.options import job_options, model_options
from packer_cli.config import GpuConfig, WriteConfig
from packer_cli.panels import Panel


@as_command()
@click.argument("folder", metavar="FOLDER", type=Folder())
@model_options(WriteConfig)
@json_option("output/set", Panel.OUTPUT)
@job_options
def command(folder: str, **values: Any) -> None:
    """Write the shards and rank manifests of a plan.

    FOLDER is the output of `hbpack plan`. In the output of an earlier write or pack, damaged files are rewritten;
    shards keep their size unless you give another.

    Examples::

        hbpack write STORE
        # Smaller shards, and no token store beside them
        hbpack write STORE --shard-size 64MiB --no-keep-tokens
    """
    from packer_cli.commands.stages import write

    packed = write(folder, **values)
    if wants_json():
        from packer_cli.cli.print_set import print_set  # Loads kernels, which nothing else here needs.

        print_set(folder, GpuConfig())
    elif packed is None:
        say_share(folder)
    else:
        say_set(folder, packed.manifest(), GpuConfig())
