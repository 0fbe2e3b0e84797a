"""`PackedDataset`, beside a plain numpy copy of the tensors that it returns."""

from __future__ import annotations

import shutil
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from tests.benchmark.measure import BenchmarkError, run_measured
from tests.benchmark.pack import NUM_GPUS, pack_command
from tests.benchmark.report import seconds, table, times, versions

_PASSES = 20


def run(work: Path, runs: int) -> str:
    """Measure, and give the text of the section."""
    try:
        from packer_cli.loader import PackedDataset
    except ImportError as error:
        raise BenchmarkError(str(error)) from None
    packed = work / "packed"
    if not (packed / "hbpack.json").exists():
        print("loader: packs the corpora first", file=sys.stderr)
        shutil.rmtree(packed, ignore_errors=True)
        run_measured(pack_command(packed))
    rows = []
    passes = _PASSES * runs
    start = time.perf_counter()
    dataset = PackedDataset(packed, 0, NUM_GPUS)
    opening = time.perf_counter() - start
    groups = [dataset[i]["group"] for i in range(len(dataset))]
    for number, group in enumerate(dataset.manifest["groups"]):
        iterations = [i for i, value in enumerate(groups) if value == number]
        batch, copy, tokens = _time(dataset, iterations, passes)
        rows.append(
            [
                group.get("name", f"group {number}"),
                f"{len(iterations)}",
                f"{tokens:,.0f}",
                f"{batch * 1e6:.0f}",
                f"{tokens / batch / 1e6:,.0f}",
                f"{copy * 1e6:.0f}",
                times(batch, copy),
            ]
        )
    text = (
        f"Rank 0 of {NUM_GPUS}, no workers, files in the page cache; opened in {seconds(opening)}. Median over "
        f"{passes} passes over the group's iterations, each batch followed by its floor: `numpy.copy` of each "
        f"tensor that the batch holds. Tokens are those of this rank's tensors. {versions(('torch', 'numpy'))}."
    )
    header = ["group", "iterations", "tokens a batch", "us a batch", "million tokens/s", "floor, us", "to the floor"]
    return f"{text}\n\n{table(header, rows)}"


def _time(dataset: Any, iterations: list[int], passes: int) -> tuple[float, float, float]:
    """Median seconds of a batch and of the copy of its tensors, and mean tokens of a batch."""
    import torch

    batches: list[float] = []
    copies: list[float] = []
    tokens: list[int] = []
    for _ in range(passes):
        for i in iterations:
            start = time.perf_counter()
            batch = dataset[i]
            middle = time.perf_counter()
            tensors = {id(value): value for value in batch.values() if isinstance(value, torch.Tensor)}
            arrays = [value.numpy() for value in tensors.values()]
            begin = time.perf_counter()
            copied = [np.copy(array) for array in arrays]
            end = time.perf_counter()
            del copied
            batches.append(middle - start)
            copies.append(end - begin)
            tokens.append(batch["input_ids"].numel())
    return statistics.median(batches), statistics.median(copies), statistics.mean(tokens)
