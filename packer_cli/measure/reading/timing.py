"""Times the batches of a loader."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from packer_cli.measure.reading.floor import count_tokens


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
