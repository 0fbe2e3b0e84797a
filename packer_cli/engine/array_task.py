"""Which task of a job array a run is, and which part of the work is its share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TypeVar

Item = TypeVar("Item")


@dataclass(frozen=True)
class ArrayTask:
    """Task `index` of `num_tasks`, counted from 0. Its share is a range of the work, about as large as the others."""

    index: int
    num_tasks: int

    def share(self, items: Sequence[Item], sizes: Sequence[int]) -> list[Item]:
        """Its items, in order: those whose middle is in its range.

        >>> [ArrayTask(index, 3).share("abcd", [1, 1, 1, 3]) for index in range(3)]
        [['a', 'b'], ['c'], ['d']]
        """
        total = sum(sizes)
        ends = accumulate(sizes)
        return [item for item, end, size in zip(items, ends, sizes, strict=True) if self.takes(end - size, end, total)]

    def takes(self, start: int, stop: int, total: int) -> bool:
        """Whether a piece of work, from `start` to `stop` of `total`, is its own; exactly one task takes it."""
        return self._of((start + stop) // 2, total) == self.index

    def overlaps(self, start: int, stop: int, total: int) -> bool:
        """Whether a piece of this piece of work may be its own."""
        return self._of(start, total) <= self.index <= self._of(stop, total)

    def _of(self, place: int, total: int) -> int:
        return min(place * self.num_tasks // max(total, 1), self.num_tasks - 1)

    def __str__(self) -> str:
        return f"{self.index}/{self.num_tasks}"


@dataclass(frozen=True, kw_only=True)
class ArrayIds:
    """Which task this run is, as far as the command line or the scheduler says, and how the ids follow each other."""

    id: int
    num_tasks: int | None
    """None if the scheduler does not say."""
    first: int = 0
    step: int = 1
    source: str = "--shard"
    """The option or the environment variable."""

    @property
    def is_explicit(self) -> bool:
        """Whether the user named the task, rather than the scheduler."""
        return self.source == "--shard"
