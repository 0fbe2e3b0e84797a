"""Plain-Python twin of `tokens.content_hash`, straight from docs/formats.md."""

from __future__ import annotations

from collections.abc import Iterable

_MASK = 2**64 - 1


def item_hash(input_ids: Iterable[int], starts: list[int], parents: list[int], ends: list[int]) -> int:
    """The hash of one item, with its tree as `format.trees.Trees` has it."""
    if len(ends) == 1:
        return content_hash(input_ids)
    of_segments = [number for stop, parent in zip(starts[1:], parents, strict=True) for number in (stop, parent + 1)]
    return content_hash([*input_ids, *of_segments, *ends])


def content_hash(input_ids: Iterable[int]) -> int:
    """The hash of one sample."""
    state = 0xCBF29CE484222325
    for token in input_ids:
        state = (state ^ token) * 0x100000001B3 & _MASK
    state = (state ^ (state >> 33)) * 0xFF51AFD7ED558CCD & _MASK
    state = (state ^ (state >> 33)) * 0xC4CEB9FE1A85EC53 & _MASK
    return state ^ (state >> 33)
