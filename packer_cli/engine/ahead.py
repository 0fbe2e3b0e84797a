"""An iterator on a thread of its own, one item ahead of who reads it."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")
_END = object()


def one_ahead(items: Iterator[Item]) -> Iterator[Item]:
    """The same items; each is made while the caller works on the one before. Errors come in their place."""
    with ThreadPoolExecutor(1) as thread:
        waiting = thread.submit(next, items, _END)
        while (item := waiting.result()) is not _END:
            waiting = thread.submit(next, items, _END)
            yield item  # type: ignore[misc]
