"""`hbpack pack`."""

from __future__ import annotations

from typing import Any

import click

from packer_cli.cli.options import (
    config_option,
    engine_option,
    inputs_argument,
    model_options,
    output_option,
    workers_option,
)
from packer_cli.config import PackConfig, PlanConfig, TokenizeConfig, WriteConfig, validate
from packer_cli.remote.names import as_path


@click.command("pack")
@inputs_argument
@output_option("Folder to write: new, empty, or an earlier run's.")
@model_options(PackConfig)
@workers_option
@engine_option
@config_option
@click.option("--dry-run", is_flag=True, help="Tokenize, plan and show the metrics, but write no shards.")
def command(output: str, workers: int | None, engine: str, dry_run: bool, **values: Any) -> None:
    """Turn a corpus into packed, balanced, scheduled shards: tokenize, plan and write.

    INPUT is a file, folder or glob of JSONL, JSON, Parquet, Arrow, text, or token ids of Megatron (.bin/.idx),
    datatrove (.ds) or dolma (.npy), or a Hugging Face data set; PATH@2.0 shows
    each sample twice an epoch, PATH@0.5 half of them.

    Run it again after a crash, or with other groups: what is there and still valid is reused.
    """
    tokenize, plan, write = (validate(model, values) for model in (TokenizeConfig, PlanConfig, WriteConfig))
    from packer_cli.stages.workers import make_engine

    with make_engine(workers, engine, tokenizer=tokenize.tokenizer, chat_template=tokenize.chat_template) as running:
        from packer_cli.stages.pack import run_pack

        header = run_pack(tokenize, plan, None if dry_run else write, as_path(output), running)
    from packer_cli.cli.tables.plan import print_counts, print_stats

    print_counts(header.counts)
    print_stats(header.metrics)
    if header.counts.rejected or header.counts.dropped or header.counts.truncated:
        click.echo(f"  records left out or cut, with reasons: {as_path(output) / 'rejected.jsonl'}")
