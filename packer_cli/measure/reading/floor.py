"""The floor: a loader that computes nothing.

It keeps finished batches of an epoch in memory, about as many as fit `MOST_BYTES`, and clones the tensors of the next
one. Like the loader, it reads from memory, not from the core's cache, and writes to memory that the process has
written before. Loader and copy take turns, so that each finds the caches as the other leaves them.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any

import torch

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


def floor_seconds(dataset: Any, iterations: Iterable[int]) -> float:
    """Mean seconds to copy a batch of these iterations. Price: reads each twice, and copies it three times."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        floor = Floor(dataset, iterations)
        for tensors in floor.finished:
            floor.copy(tensors)
        total = 0.0
        batch = None
        for i, tensors in zip(floor.iterations, floor.finished, strict=True):
            batch = dataset[i]
            total += floor.copy(tensors)
        del batch
        return total / len(floor.iterations)
    finally:
        torch.set_num_threads(threads)
