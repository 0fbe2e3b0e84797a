"""`hbpack pack`."""

from __future__ import annotations

from typing import Any

import click

from packer_cli.api.pack import pack
from packer_cli.cli.options import (
    config_option,
    engine_option,
    inputs_argument,
    model_options,
    output_option,
    workers_option,
)
from packer_cli.config import PackConfig
from packer_cli.format.metrics import Counts
from packer_cli.remote.names import as_path


@click.command("pack")
@inputs_argument
@output_option("Folder to write: new, empty, or an earlier run's.")
@model_options(PackConfig)
@workers_option
@engine_option
@config_option
@click.option("--dry-run", is_flag=True, help="Tokenize, plan and show the metrics, but write no shards.")
def command(
    inputs: tuple[str, ...], output: str, workers: int | None, engine: str, dry_run: bool, **values: Any
) -> None:
    """Turn a corpus into packed, balanced, scheduled shards: tokenize, plan and write.

    INPUT is a file, folder or glob of JSONL, JSON, Parquet, Arrow, text, or token ids of Megatron (.bin/.idx),
    datatrove (.ds) or dolma (.npy), or a Hugging Face data set; PATH@2.0 shows
    each sample twice an epoch, PATH@0.5 half of them, PATH@2Btokens two billion
    tokens of them.

    Run it again after a crash, or with other groups: what is there and still valid is reused.
    """
    made = pack(inputs, output=output, workers=workers, engine=engine, dry_run=dry_run, **values).plan()
    counts = made.counts
    from packer_cli.cli.tables.plan import print_counts, print_stats

    print_counts(counts)
    print_stats(made.metrics)
    if counts.dropped or counts.truncated or (isinstance(counts, Counts) and counts.rejected):
        click.echo(f"  records left out or cut, with reasons: {as_path(output) / 'rejected.jsonl'}")
