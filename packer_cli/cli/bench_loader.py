"""`hbpack bench-loader`."""

from __future__ import annotations

import json

import click

from packer_cli.cli.command import Command, json_option, option
from packer_cli.cli.console import say_next
from packer_cli.cli.param_types import FiniteRange, Folder, LocalPath
from packer_cli.cli.tables.bench_loader import fastest, print_speed
from packer_cli.errors import ConfigError
from packer_cli.sizes import counted


@click.command(
    "bench-loader",
    cls=Command,
    examples="""
    hbpack bench-loader OUT --workers 0,2 --batches 20
    """,
)
@click.argument("folder", metavar="OUT", type=Folder())
@option(
    "--format",
    "format_name",
    default="transformers",
    show_default=True,
    metavar="FORMAT",
    help="Trainer format of the batches.",
)
@option(
    "--workers",
    default="0",
    show_default=True,
    metavar="N,...",
    help="Worker processes of the DataLoader, such as 0,2,4.",
)
@option("--rank", type=int, default=0, show_default=True, metavar="R", help="GPU whose batches are read.")
@option(
    "--seconds",
    type=FiniteRange(min=0, min_open=True, max=3600),
    default=2.0,
    show_default=True,
    metavar="S",
    help="Time for each row of the table.",
)
@option("--batches", type=click.IntRange(min=1), metavar="N", help="Batches for each row, in place of --seconds.")
@option(
    "--cache-dir",
    type=LocalPath(is_output=True),
    metavar="DIR",
    show_default="the loader's cache",
    help="For a remote set: where to make a folder for its shards, which is removed at the end.",
)
@json_option("bench-loader")
def command(
    folder: str,
    format_name: str,
    workers: str,
    rank: int,
    seconds: float,
    batches: int | None,
    cache_dir: str | None,
    as_json: bool,
) -> None:
    """Measure how fast the loader reads a packed set on this machine, next to a plain copy.

    OUT is the output of `hbpack pack` or `hbpack write`, or its URL in remote storage. For each number of workers,
    the epoch is read in its order and in the state it is in: in the page cache or not, or not yet fetched if the set
    is remote. Then some iterations of each group are read repeatedly. Needs torch.
    """
    counts = _parse_workers(workers)
    try:
        from packer_cli.measure.reading.measure import Limit, SpeedOptions, measure_loader

        limit = Limit(num_batches=batches) if batches is not None else Limit(seconds=seconds)
        options = SpeedOptions(rank=rank, format=format_name, workers=counts, limit=limit, cache_dir=cache_dir)
        figures = measure_loader(folder, options)
    except ImportError as error:
        raise ConfigError(str(error)) from None
    if as_json:
        click.echo(json.dumps(figures, indent=2))
        return
    print_speed(figures)
    best = fastest(figures)
    if best is not None:
        what = counted(best, "worker") if best else "No workers"
        say_next(f"{what} read fastest", f"num_workers={best} in your DataLoader")


def _parse_workers(text: str) -> tuple[int, ...]:
    """The numbers of workers, without repetitions."""
    words = [word.strip() for word in text.split(",")]
    if not all(word.isascii() and word.isdigit() and len(word) < 4 for word in words):
        raise ConfigError(f"--workers: {text!r} is not a list of numbers from 0 to 999; write for example 0,2,4")
    return tuple(dict.fromkeys(map(int, words)))
