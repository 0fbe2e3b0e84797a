"""Plain-Python twins of the loader's fast paths, straight from docs/formats.md and the words of the docstrings."""

from __future__ import annotations

from itertools import pairwise

import pyarrow as pa


def positions(cu_seqlens: list[int], start: int, length: int) -> list[int]:
    """Places in their segments of the tokens `start` to `start + length` of a row."""
    row = [place for begin, end in pairwise(cu_seqlens) for place in range(end - begin)]
    return row[start : start + length]


def labels(input_ids: list[int], loss_mask: list[int], firsts: list[int]) -> list[int]:
    """The id where there is loss, -100 elsewhere and at first tokens."""
    return [
        token if mask and place not in firsts else -100
        for place, (token, mask) in enumerate(zip(input_ids, loss_mask, strict=True))
    ]


def loss_tokens(loss_mask: list[int], cu_seqlens: list[int]) -> list[int]:
    """Loss tokens of each sample."""
    return [sum(loss_mask[begin:end]) for begin, end in pairwise(cu_seqlens)]


def read_packs(path: str, columns: list[str]) -> list[tuple]:
    """The rows of a shard as pyarrow gives them."""
    with pa.memory_map(path) as source:
        table = pa.ipc.open_file(source).read_all()
        return [*zip(*(table[name].to_pylist() for name in columns), strict=True)]
