"""`hbpack export`."""

from __future__ import annotations

import click

from packer_cli.cli.array_ids import array_ids
from packer_cli.cli.command import Choice, Command, json_option, option
from packer_cli.cli.options import config_option, engine_option, output_option, shard_option, workers_option
from packer_cli.cli.param_types import Folder, Text
from packer_cli.export.formats import FORMATS, ORDERS, format_names
from packer_cli.format.epochs import MAX_EPOCH
from packer_cli.remote.names import as_path


@click.command(
    "export",
    cls=Command,
    examples="""
    hbpack export OUT --to trl --output TRL
    # One group, for Megatron-LM
    hbpack export OUT --to megatron --groups 1k --output MEGATRON
    """,
)
@click.argument("folder", metavar="OUT", type=Folder())
@option(
    "--to",
    "format_name",
    type=Text(format_names),
    required=True,
    metavar="FORMAT",
    help=f"Format to write: {', '.join(FORMATS)}.",
)
@output_option("Folder to write: new, empty, or of the same export, interrupted.")
@option(
    "--groups",
    metavar="GROUPS",
    help="Groups to export, such as 16k or 16k:1,128k:8, or names of their folders.",
    show_default="all",
)
@option(
    "--order",
    type=Choice(list(ORDERS)),
    default="use",
    show_default=True,
    help="`use`: rows as training reads them, by iteration, then DP rank; `packs`: as they lie in the shards.",
)
@option(
    "--epoch",
    type=click.IntRange(0, MAX_EPOCH),
    metavar="N",
    help="Epoch whose order `use` takes.",
    show_default="the first",
)
@option(
    "--shard-size",
    metavar="BYTES",
    help="Approximate size of a file; megatron has one.",
    show_default="256MiB; mds: 64MiB",
)
@option(
    "--loss-weights/--no-loss-weights",
    default=True,
    help="Keep the loss weights of a set that has any; without them, each loss token counts 1.",
)
@json_option("export")
@shard_option
@workers_option
@engine_option
@config_option
def command(
    folder: str,
    format_name: str,
    output: str,
    groups: str | None,
    order: str,
    epoch: int | None,
    shard_size: str | None,
    loss_weights: bool,
    as_json: bool,
    shard: str | None,
    workers: int | None,
    engine: str,
) -> None:
    """Write a packed data set in another trainer's format.

    OUT is the output of `hbpack pack` or `hbpack write`. One row, or document, is one pack; token ids, loss masks and
    sample borders are kept. docs/export.md says what each format holds, and what it has no place for.

    An interrupted run continues where it stopped.
    """
    from packer_cli.export.options import ExportOptions, parse_shard_size
    from packer_cli.stages.array import make_engine
    from packer_cli.stages.export import run_export

    options = ExportOptions(
        format=format_name,
        groups=groups,
        epoch=epoch,
        order=order,
        shard_size=parse_shard_size(shard_size),
        loss_weights=loss_weights,
    )
    ids = array_ids(shard)
    with make_engine(workers, engine, preload=()) as running:
        run_export(options, as_path(folder), as_path(output), running, ids)
    from packer_cli.cli.tables.written import print_exported

    print_exported(output, format_name, as_json=as_json)
