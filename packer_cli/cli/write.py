"""`hbpack write`."""

from __future__ import annotations

from typing import Any

import click

from packer_cli.cli.command import Folder, as_command, json_option
from packer_cli.cli.console import say_set, say_share, wants_json
from packer_cli.cli.options import job_options, model_options
from packer_cli.config import GpuConfig, WriteConfig, validate
from packer_cli.engine.array import ArrayIds
from packer_cli.panels import Panel
from packer_cli.remote.path import as_path


@as_command()
@click.argument("folder", metavar="FOLDER", type=Folder())
@model_options(WriteConfig)
@json_option("output/set", Panel.OUTPUT)
@job_options
def command(folder: str, ids: ArrayIds | None, workers: str | None, engine: str | None, **values: Any) -> None:
    """Write the shards and rank manifests of a plan.

    FOLDER is the output of `hbpack plan`. In the output of an earlier write or pack, damaged files are rewritten;
    shards keep their size unless you give another.

    Examples::

        hbpack write STORE
        # Smaller shards, and no token store beside them
        hbpack write STORE --shard-size 64MiB --no-keep-tokens
    """
    config = validate(WriteConfig, values)
    from packer_cli.commands.engines import make_engine
    from packer_cli.commands.output_folder import current_manifest
    from packer_cli.commands.write import run_write

    with make_engine(workers, engine, preload=()) as running:
        run_write(config, as_path(folder), running, ids)
    if wants_json():
        from packer_cli.cli.print_set import print_set  # Loads kernels, which nothing else here needs.

        print_set(folder, GpuConfig())
    elif (manifest := current_manifest(as_path(folder))) is None:  # In a task of an array that is not done.
        say_share(folder)
    else:
        say_set(folder, manifest, GpuConfig())
