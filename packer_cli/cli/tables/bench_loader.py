"""The table of `hbpack bench-loader`."""

from __future__ import annotations

from typing import Any

from packer_cli.cli.console import print_note, print_table
from packer_cli.sizes import counted

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
