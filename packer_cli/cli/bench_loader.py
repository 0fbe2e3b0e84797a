"""`hbpack bench-loader`."""

from __future__ import annotations

import json
from typing import Any

import click

from packer_cli.cli.command import Command, json_option, option
from packer_cli.cli.console import print_note, print_table, say_next
from packer_cli.cli.param_types import FiniteRange, Folder, LocalPath
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


_HEADER = (
    "group", "workers", "batches", "tokens a batch", "ms a batch", "batches/s", "million tokens/s", "floor, ms",
    "to the floor",
)  # fmt: skip

_ALL = "all, "
"""Begins the names of rows that read the whole epoch, in whatever state its files are."""


def print_speed(figures: dict[str, Any]) -> None:
    """Print the table, then the figures of each number of workers."""
    title = (
        f"Loader speed: format {figures['format']}, rank {figures['rank']} of {figures['num_gpus']}, "
        f"torch {figures['torch_version']}, {figures['num_cpus']} CPUs"
    )
    print_table(title, list(_HEADER), [_cells(row) for row in figures["rows"]], is_dense=True)
    print_note(f"opened in {_milliseconds(figures['open_seconds'])} ms")
    for entry in figures["workers"]:
        print_note(f"{_workers(entry['workers'])}: {'; '.join(_facts(entry))}")
    print_note(
        "floor: cloning the tensors of a batch, which lie finished in memory, in one process; 'in order' reads the "
        "epoch as training does, with the files as they are found; the other rows read what has been read before"
    )


def fastest(figures: dict[str, Any]) -> int | None:
    """The number of workers that reads a batch of every group in the least time; None if nothing was read."""
    seconds: dict[int, float] = {}
    for row in figures["rows"]:
        if row["seconds_per_batch"] is not None and not row["name"].startswith(_ALL):
            seconds[row["workers"]] = seconds.get(row["workers"], 0.0) + row["seconds_per_batch"]
    return min(seconds, key=lambda workers: seconds[workers]) if seconds else None


def _cells(row: dict[str, Any]) -> list[str]:
    seconds, floor = row["seconds_per_batch"], row["floor_seconds_per_batch"]
    if seconds is None:
        return [row["name"], str(row["workers"]), "0", *["-"] * 6]
    return [
        row["name"],
        str(row["workers"]),
        f"{row['num_batches']:,}",
        f"{row['tokens_per_batch']:,.0f}",
        _milliseconds(seconds),
        f"{row['batches_per_second']:,.0f}" if row["batches_per_second"] >= 10 else f"{row['batches_per_second']:.2f}",
        f"{row['tokens_per_second'] / 1e6:,.1f}",
        "-" if floor is None else _milliseconds(floor),
        "-" if not floor else f"{seconds / floor:.1f} x",
    ]


def _facts(entry: dict[str, Any]) -> list[str]:
    facts = [f"first batch after {_milliseconds(entry['first_batch_seconds'])} ms"]
    if entry["peak_bytes"] is not None:
        mapped = entry["mapped_bytes"]
        of_it = f", of which {_mebibytes(mapped)} are mapped files" if mapped else ""
        facts.append(f"memory grew by {_mebibytes(entry['peak_bytes'])} at most{of_it}")
    if entry["worker_bytes"] is not None:
        facts.append(f"the workers hold {_mebibytes(entry['worker_bytes'])} of their own")
    return facts


def _workers(number: int) -> str:
    return counted(number, "worker") if number else "no workers"


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1000:,.1f}" if seconds >= 0.01 else f"{seconds * 1000:.3f}"


def _mebibytes(num_bytes: int) -> str:
    return f"{num_bytes / 2**20:,.0f} MiB"
