"""Runs an iterator on its own thread, one item ahead of its consumer."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")
_END = object()


def one_ahead(items: Iterator[Item]) -> Iterator[Item]:
    """Yield the same items; each is computed while the caller works on the one before. Errors are raised in order."""
    with ThreadPoolExecutor(1) as thread:
        waiting = thread.submit(next, items, _END)
        while (item := waiting.result()) is not _END:
            waiting = thread.submit(next, items, _END)
            yield item  # type: ignore[misc]
