"""`hbpack write`."""

from __future__ import annotations

from typing import Any

import click

from packer_cli.cli.options import config_option, model_options, workers_option
from packer_cli.config import WriteConfig, validate
from packer_cli.remote.path import as_path


@click.command("write")
@click.argument("folder", metavar="FOLDER")
@model_options(WriteConfig)
@workers_option
@config_option
def command(folder: str, workers: int | None, **values: Any) -> None:
    """Write the shards and rank manifests of a plan.

    FOLDER is the output of `hbpack plan`. In the output of an earlier write or pack, damaged files are rewritten;
    shards keep their size unless you give another.
    """
    config = validate(WriteConfig, values)
    from packer_cli.engine.local import LocalEngine, default_workers
    from packer_cli.stages.write import run_write

    engine = LocalEngine(workers or default_workers())  # Only its threads are used.
    run_write(config, as_path(folder), engine)
