"""`hbpack write`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from packer_cli.cli.array_ids import array_ids
from packer_cli.cli.options import LocalPath, config_option, model_options, shard_option, workers_option
from packer_cli.config import WriteConfig, validate


@click.command("write")
@click.argument("folder", metavar="FOLDER", type=LocalPath())
@model_options(WriteConfig)
@shard_option
@workers_option
@config_option
def command(folder: str, shard: str | None, workers: int | None, **values: Any) -> None:
    """Write the shards and rank manifests of a plan.

    FOLDER is the output of `hbpack plan`. In the output of an earlier write or pack, damaged files are rewritten;
    shards keep their size unless you give another.
    """
    config, ids = validate(WriteConfig, values), array_ids(shard)
    from packer_cli.engine.local import LocalEngine, default_workers
    from packer_cli.stages.write import run_write

    engine = LocalEngine(workers or default_workers())  # Only its threads are used.
    run_write(config, Path(folder), engine, ids)
