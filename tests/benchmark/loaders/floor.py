"""A batch, and its floor: a loader that computes nothing.

The floor keeps finished batches of an epoch in memory, about as many as fit `MOST_BYTES`, and clones the tensors of
the next one. Like the loader, it reads from memory, not from the core's cache, and writes to memory that the process
has written before. Loader and copy take turns, so that each finds the caches as the other leaves them.

`again` copies what the loader has just written: its source is in the core's cache, unlike the data that a loader must
read.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from packer_cli.loader import PackedDataset
from packer_cli.loader.formats.base import is_list_of_batches

MOST_BYTES = 256 * 2**20
"""Bytes of finished tensors; the batch that exceeds them is the last."""


def batch_tensors(batch: Any) -> list[torch.Tensor]:
    """The tensors of a batch of any format, each once, including those of its metadata and of a block mask."""
    found: dict[int, torch.Tensor] = {}
    _collect(batch, found)
    return list(found.values())


def _collect(value: Any, found: dict[int, torch.Tensor]) -> None:
    if isinstance(value, torch.Tensor):
        found[id(value)] = value
    elif isinstance(value, Mapping):
        for item in value.values():
            _collect(item, found)
        _collect(getattr(value, "metadata", None), found)
    elif isinstance(value, (tuple, list)):
        for item in value:
            _collect(item, found)
    elif hasattr(value, "as_tuple"):
        _collect(value.as_tuple(), found)


def count_tokens(batch: Any) -> int:
    """Tokens of this rank's part of a batch, or of a list of micro-batches, padding included."""
    if is_list_of_batches(batch):
        return sum(map(count_tokens, batch))
    # The longest int64 tensors have one number per token.
    return max((tensor.numel() for tensor in batch_tensors(batch) if tensor.dtype == torch.int64), default=0)


class Floor:
    """Finished batches, and copying them. Limit torch to one thread (`torch.set_num_threads`)."""

    def __init__(self, dataset: Any, iterations: Iterable[int]) -> None:
        self.iterations: list[int] = []
        """The iterations whose batches are finished."""
        self.finished: list[list[torch.Tensor]] = []
        self.num_bytes = 0
        for i in iterations:
            tensors = [tensor.clone() for tensor in batch_tensors(dataset[i])]
            self.iterations.append(i)
            self.finished.append(tensors)
            self.num_bytes += sum(tensor.nbytes for tensor in tensors)
            if self.num_bytes > MOST_BYTES:
                break
        self._copied: list[torch.Tensor] = []

    def copy(self, tensors: Iterable[torch.Tensor]) -> float:
        """Seconds to clone these; as in a training loop, the last copy is freed once the next exists."""
        clock = time.perf_counter
        start = clock()
        self._copied = [tensor.clone() for tensor in tensors]
        return clock() - start


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
    columns = dataset._place.rows.columns
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
