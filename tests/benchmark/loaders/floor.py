"""A batch, and the floor of `packer_cli.measure.reading.measure`, a plain copy that writes the same tensors.

`again` copies what the loader has just written: its source is in the core's cache, unlike the data that a loader must
read.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from typing import Any

import torch

from packer_cli.loader import PackedDataset
from packer_cli.measure.reading.measure import Floor, batch_tensors, count_tokens


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("path")
    parser.add_argument("--gpus", type=int, required=True)
    parser.add_argument("--group", type=int, required=True)
    parser.add_argument("--format", required=True)
    parser.add_argument("--rounds", type=int, required=True)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    dataset = PackedDataset(arguments.path, 0, arguments.gpus, format=arguments.format)
    columns = dataset._rows.columns
    wanted = ((columns["group"] == arguments.group) & (columns["shard"] >= 0)).nonzero()[0].tolist()
    floor = Floor(dataset, wanted)
    clock = time.perf_counter
    loader: list[float] = []
    copy: list[float] = []
    again: list[float] = []
    num_tokens = []
    batch: Any = None
    for number in range(-1, arguments.rounds):
        for i, source in zip(floor.iterations, floor.finished, strict=True):
            # As in a training loop, the last batch is freed once the next one exists.
            start = clock()
            batch = dataset[i]
            loaded = clock()
            copied = floor.copy(source)
            sources = batch_tensors(batch)
            copied_again = floor.copy(sources)
            if number < 0:
                num_tokens.append(count_tokens(sources))
                continue
            loader.append(loaded - start)
            copy.append(copied)
            again.append(copied_again)
    median = statistics.median
    result = {
        "iterations": len(floor.iterations),
        "tokens": statistics.mean(num_tokens),
        "finished_bytes": floor.num_bytes,
        "loader": median(loader),
        "copy": median(copy),
        "again": median(again),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
