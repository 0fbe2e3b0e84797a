"""Plain-Python twin of `tokens.content_hash`, straight from docs/formats.md."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import xxhash


def item_hash(
    input_ids: Sequence[int], starts: list[int], parents: list[int], ends: list[int], code: str = "H"
) -> int:
    """The hash of one item, with its tree as `format.trees.Trees` has it."""
    if len(ends) == 1:
        return content_hash(input_ids, code)
    tree = [*starts[1:], *parents, *ends]
    return int(xxhash.xxh3_64_intdigest(_packed(input_ids, code) + _packed(tree, "i")))


def content_hash(input_ids: Sequence[int], code: str = "H") -> int:
    """The hash of one sample, whose ids are uint16 (H) or int32 (i)."""
    return int(xxhash.xxh3_64_intdigest(_packed(input_ids, code)))


def _packed(numbers: Sequence[int], code: str) -> bytes:
    return struct.pack(f"<{len(numbers)}{code}", *numbers)
