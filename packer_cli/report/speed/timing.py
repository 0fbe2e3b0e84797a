"""Batches of a loader against the clock, and the floor: a plain copy of the tensors that a batch holds."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch


@dataclass(frozen=True, kw_only=True)
class Limit:
    """When to stop: after so many batches, or when so many seconds are over; one batch at least."""

    num_batches: int | None = None
    seconds: float | None = None

    def is_reached(self, num_batches: int, seconds: float) -> bool:
        """Whether to stop after these."""
        if self.num_batches is not None:
            return num_batches >= self.num_batches
        return self.seconds is None or seconds >= self.seconds


@dataclass(frozen=True, kw_only=True)
class Timings:
    """One number a batch in each list."""

    seconds: list[float] = field(default_factory=list)
    """Waiting for the batch."""
    copy_seconds: list[float] = field(default_factory=list)
    """Copying its tensors; empty where that was not measured."""
    num_tokens: list[int] = field(default_factory=list)
    """Of this rank's tensors, padding included."""


@dataclass(frozen=True)
class Repeated:
    """A sampler that goes through some iterations again and again."""

    iterations: Sequence[int]

    def __iter__(self) -> Iterator[int]:
        return itertools.cycle(self.iterations)


def batch_tensors(batch: Any) -> list[torch.Tensor]:
    """The tensors of a batch of any format, each once."""
    found: dict[int, torch.Tensor] = {}
    _collect(batch, found)
    return list(found.values())


def _collect(value: Any, found: dict[int, torch.Tensor]) -> None:
    if isinstance(value, torch.Tensor):
        found[id(value)] = value
    elif isinstance(value, (Mapping, tuple, list)):
        for item in value.values() if isinstance(value, Mapping) else value:
            _collect(item, found)


def time_reading(dataset: Any, iterations: Iterable[int], limit: Limit, *, with_copy: bool = True) -> Timings:
    """Read batches in this process, each followed by its floor: `numpy.copy` of each tensor that it holds.

    Args:
        dataset: a `PackedDataset`.
        iterations: as many as are there at most; `Repeated` ends by the limit alone.
    """
    timings = Timings()
    clock = time.perf_counter
    began = clock()
    for i in iterations:
        start = clock()
        batch = dataset[i]
        timings.seconds.append(clock() - start)
        tensors = batch_tensors(batch)
        timings.num_tokens.append(_num_tokens(tensors))
        if with_copy:
            arrays = [tensor.numpy() for tensor in tensors]
            start = clock()
            copied = [np.copy(array) for array in arrays]
            timings.copy_seconds.append(clock() - start)
            del copied
        if limit.is_reached(len(timings.seconds), clock() - began):
            break
    return timings


def time_loader(loader: Iterable[Any], limit: Limit, at_end: Callable[[], None]) -> tuple[float, Timings]:
    """(seconds to the first batch, timings of those after it) of a DataLoader with workers.

    Args:
        at_end: called after the last batch, while the workers still live.
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
        timings.num_tokens.append(_num_tokens(batch_tensors(batch)))
        if limit.is_reached(len(timings.seconds), now - began):
            break
        start = clock()
    at_end()
    return first, timings


def _num_tokens(tensors: list[torch.Tensor]) -> int:
    """The longest tensors are those with a number a token."""
    return max((tensor.numel() for tensor in tensors), default=0)
