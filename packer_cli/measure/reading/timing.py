"""Times the batches of a loader.

The floor: a loader that computes nothing. It keeps finished batches of an epoch in memory, about as many as fit
`MOST_BYTES`, and clones the tensors of the next one. Like the loader, it reads from memory, not from the core's cache,
and writes to memory that the process has written before. Loader and copy take turns, so that each finds the caches as
the other leaves them.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from packer_cli.loader.formats.base import is_list_of_batches


@dataclass(frozen=True, kw_only=True)
class Limit:
    """When to stop: after a number of batches or seconds, but not before one batch."""

    num_batches: int | None = None
    seconds: float | None = None

    def is_reached(self, num_batches: int, seconds: float) -> bool:
        """Whether to stop after this many batches and seconds."""
        if self.num_batches is not None:
            return num_batches >= self.num_batches
        return self.seconds is None or seconds >= self.seconds


@dataclass(frozen=True, kw_only=True)
class Timings:
    """Each list has one number per batch."""

    seconds: list[float] = field(default_factory=list)
    """Time spent waiting for the batch."""
    num_tokens: list[int] = field(default_factory=list)
    """Tokens of this rank's part, padding included."""


@dataclass(frozen=True)
class Repeated:
    """A sampler that repeats the given iterations."""

    iterations: Sequence[int]

    def __iter__(self) -> Iterator[int]:
        return itertools.cycle(self.iterations)


def time_reading(dataset: Any, iterations: Iterable[int], limit: Limit) -> Timings:
    """Read batches in this process.

    Args:
        dataset: a `PackedDataset`.
        iterations: the batches to read, until the limit; `Repeated` never ends by itself.
    """
    timings = Timings()
    clock = time.perf_counter
    began = clock()
    for i in iterations:
        start = clock()
        batch = dataset[i]
        timings.seconds.append(clock() - start)
        timings.num_tokens.append(count_tokens(batch))
        if limit.is_reached(len(timings.seconds), clock() - began):
            break
    return timings


def time_loader(loader: Iterable[Any], limit: Limit, at_end: Callable[[], None]) -> tuple[float, Timings]:
    """(seconds to the first batch, timings of those after it) of a DataLoader with workers.

    Args:
        at_end: called after the last batch, while the workers are still alive.
    """
    clock = time.perf_counter
    start = clock()
    batches = iter(loader)
    next(batches)
    first = clock() - start
    timings = Timings()
    start = began = clock()
    for batch in batches:
        now = clock()
        timings.seconds.append(now - start)
        timings.num_tokens.append(count_tokens(batch))
        if limit.is_reached(len(timings.seconds), now - began):
            break
        start = clock()
    at_end()
    return first, timings


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
