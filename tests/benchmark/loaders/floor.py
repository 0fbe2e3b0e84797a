"""A batch, and a plain copy that writes the same tensors.

The copy is a loader with nothing to work out: all batches of the epoch (as many as `_MOST_BYTES` hold) lie finished
in memory, and it clones the tensors of the next one, into memory that the process has written before, as the loader's
is. `again` copies what the loader has just written, once more: its source is in the core's cache, where no loader
finds what it has to read.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from typing import Any

import torch

from packer_cli.loader import PackedDataset

_MOST_BYTES = 256 * 2**20


def tensors(batch: Any) -> list[torch.Tensor]:
    """Each tensor of a batch once, those of its metadata and of a block mask too."""
    found: dict[int, torch.Tensor] = {}

    def add(value: Any) -> None:
        if isinstance(value, torch.Tensor):
            found[id(value)] = value
        elif isinstance(value, dict):
            for each in value.values():
                add(each)
            add(getattr(value, "metadata", None))
        elif isinstance(value, (tuple, list)):
            for each in value:
                add(each)
        elif hasattr(value, "as_tuple"):
            add(value.as_tuple())

    add(batch)
    return [*found.values()]


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
    finished, held = [], 0
    for i in wanted:
        finished.append([tensor.clone() for tensor in tensors(dataset[i])])
        held += sum(tensor.nbytes for tensor in finished[-1])
        if held > _MOST_BYTES:
            break
    iterations = wanted[: len(finished)]
    clock = time.perf_counter
    loader: list[float] = []
    copy: list[float] = []
    again: list[float] = []
    num_tokens = []
    batch: Any = None
    copied: Any = None
    for number in range(-1, arguments.rounds):
        for i, source in zip(iterations, finished, strict=True):
            # As in a training loop, the last batch is let go when the next one is there.
            start = clock()
            batch = dataset[i]
            loaded = clock()
            copied = [tensor.clone() for tensor in source]
            end = clock()
            sources = tensors(batch)
            begin = clock()
            copied = [tensor.clone() for tensor in sources]
            stop = clock()
            if number < 0:
                num_tokens.append(max(tensor.numel() for tensor in sources if tensor.dtype == torch.int64))
                continue
            loader.append(loaded - start)
            copy.append(end - loaded)
            again.append(stop - begin)
    del batch, copied
    median = statistics.median
    result = {
        "iterations": len(iterations),
        "tokens": statistics.mean(num_tokens),
        "finished_bytes": held,
        "loader": median(loader),
        "copy": median(copy),
        "again": median(again),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
