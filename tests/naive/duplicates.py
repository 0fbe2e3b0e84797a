"""Plain-Python twin of `tokens.duplicates`."""

from __future__ import annotations

from collections.abc import Hashable, Iterable


def find_duplicates(contents: Iterable[Hashable]) -> list[int]:
    """The numbers of all contents but the first of those that are equal."""
    firsts: dict[Hashable, int] = {}
    return [number for number, content in enumerate(contents) if firsts.setdefault(content, number) != number]
