"""Rows of trees by the definition, in plain Python."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from hypothesis import strategies as st

from packer_cli.format.schema import ITEM_VALUES
from packer_cli.format.trees import GROUP, PAIR, SAMPLE, TURNS


class Branch(NamedTuple):
    ids: list[int]
    spans: list[tuple[int, int]]


class Item(NamedTuple):
    kind: int
    branches: list[Branch]
    number: int = 0
    """Its row in the store."""


def grow(branches: Sequence[Sequence[int]]) -> tuple[list[int], list[int], list[int], list[int]]:
    """(tokens, starts, parents, segment in which each branch ends): a node is a token and the one after it."""
    tokens: list[int] = []
    starts, parents, ends = [0], [], [0] * len(branches)

    def node(b: int, place: int) -> tuple[int, int | None]:
        return branches[b][place], branches[b][place + 1] if place + 1 < len(branches[b]) else None

    def split(members: list[int], place: int, parent: int) -> None:
        """The subtrees of branches that are alike before `place`."""
        for first in dict.fromkeys(node(b, place) for b in members):
            own = [b for b in members if node(b, place) == first]
            stop, size = place + 1, len(branches[own[0]])
            while stop < size and len({node(b, stop) for b in own}) == 1:
                stop += 1
            number = len(parents)
            tokens.extend(branches[own[0]][place:stop])
            starts.append(len(tokens))
            parents.append(parent)
            for b in own:
                ends[b] = number
            if stop < size:
                split(own, stop, number)

    split([*range(len(branches))], 0, -1)
    return tokens, starts, parents, ends


def row_of(items: Sequence[Item]) -> dict[str, Any]:
    """The columns of the shard's row of these items."""
    row: dict[str, Any] = {name: [] for name in (
        "input_ids", "segment_parents", "branch_segments", "branch_roles", "branch_loss_spans", "rewards", "item_ids",
        "item_branches", "item_kinds", *ITEM_VALUES, "loss_starts", "loss_stops", "sample_ids",
        "sample_starts", "source_ids",
    )}  # fmt: skip
    row["segment_starts"], row["cu_seqlens"] = [0], [0]
    work = path_tokens = 0
    for item in items:
        tokens, starts, parents, ends = grow([branch.ids for branch in item.branches])
        first, begin = len(row["segment_parents"]), len(row["input_ids"])
        depths: list[int] = []
        for (a, b), parent in zip(itertools.pairwise(starts), parents, strict=True):
            before = depths[parent] if parent >= 0 else 0
            depths.append(before + b - a)
            work += depths[-1] ** 2 - before**2
        path_tokens += sum(depth for number, depth in enumerate(depths) if number not in parents)
        row["input_ids"] += tokens
        row["segment_starts"] += [begin + start for start in starts[1:]]
        row["segment_parents"] += [parent if parent < 0 else first + parent for parent in parents]
        row["cu_seqlens"] += [begin + start for start, parent in zip(starts, parents, strict=False) if parent < 0][1:]
        row["cu_seqlens"].append(begin + len(tokens))
        row["branch_segments"] += [first + end for end in ends]
        row["branch_roles"] += range(len(ends))
        row["rewards"] += [np.nan] * len(ends)
        row["item_ids"] += [item.number] * len(ends)
        row["item_branches"].append(len(ends))
        row["item_kinds"].append(item.kind)
        for name in ITEM_VALUES:
            row[name].append(np.nan)
        for branch in item.branches:
            row["branch_loss_spans"].append(len(branch.spans))
            row["loss_starts"] += [a for a, _ in branch.spans]
            row["loss_stops"] += [b for _, b in branch.spans]
        for name, value in (("sample_ids", 10 * item.number), ("sample_starts", 0), ("source_ids", 0)):
            row[name] += [value] * len(ends)
    kinds = {"branch_roles": np.int16, "item_kinds": np.int8, "item_ids": np.int64, "sample_ids": np.int64}
    floats = dict.fromkeys(("rewards", *ITEM_VALUES), np.float32)
    found: dict[str, Any] = {name: np.array(row[name], dtype=(kinds | floats).get(name, np.int32)) for name in row}
    found |= {"num_path_tokens": path_tokens, "attention_work": work, "num_tokens": len(row["input_ids"])}
    found["num_loss_tokens"] = int((found["loss_stops"] - found["loss_starts"]).sum())
    return found


@st.composite
def branches(draw: st.DrawFn) -> Branch:
    ids = draw(st.lists(st.integers(0, 2), min_size=1, max_size=12))
    borders = sorted(draw(st.sets(st.integers(1, max(1, len(ids))), max_size=4)))
    spans = [(a, b) for a, b in zip(borders[::2], borders[1::2], strict=False) if b <= len(ids)]
    return Branch(ids, spans)


@st.composite
def rows(draw: st.DrawFn) -> list[Item]:
    """Items that have hardly any words, and so share prefixes at every place."""
    found = []
    for number in range(draw(st.integers(1, 4))):
        kind = draw(st.sampled_from([SAMPLE, PAIR, GROUP, TURNS]))
        size = {SAMPLE: 1, PAIR: 2}.get(kind) or draw(st.integers(1, 5))
        found.append(Item(kind, draw(st.lists(branches(), min_size=size, max_size=size)), number))
    return found
