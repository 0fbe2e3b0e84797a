"""Twins of `plan.core.items` and `plan.kernels.exchange_items`: tokens as nodes, every depth and run tried."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

from packer_cli.format.trees import SAMPLE, TURNS, ItemTrees

WHOLE = 2**31 - 1


class Item(NamedTuple):
    """An item; segments as (length, parent)."""

    kind: int
    segments: list[tuple[int, int]]
    ends: list[int]
    first_loss: list[int]


def items_of(trees: ItemTrees) -> list[Item]:
    """The items of a store, one by one."""
    found = []
    for i, kind in enumerate(trees.kinds.tolist()):
        segments = slice(*trees.segment_offsets[i : i + 2].tolist())
        branches = slice(*trees.branch_offsets[i : i + 2].tolist())
        stops, parents = trees.segment_ends[segments].tolist(), trees.segment_parents[segments].tolist()
        lengths = [stop - (stops[parent] if parent >= 0 else 0) for stop, parent in zip(stops, parents, strict=True)]
        ends, first = trees.branch_segments[branches].tolist(), trees.first_loss[branches].tolist()
        found.append(Item(kind, [*zip(lengths, parents, strict=True)], ends, first))
    return found


def ends_of(item: Item) -> list[int]:
    """Where each segment ends in its branches."""
    ends: list[int] = []
    for length, parent in item.segments:
        ends.append(length + (ends[parent] if parent >= 0 else 0))
    return ends


def path_of(item: Item, branch: int) -> list[tuple[int, int]]:
    """The tokens of a branch, each as (segment, place in it)."""
    segment, path = item.ends[branch], []
    while segment >= 0:
        length, parent = item.segments[segment]
        path = [(segment, place) for place in range(length)] + path
        segment = parent
    return path


class Figures(NamedTuple):
    """As the fields of a piece, and its loss terms."""

    length: int
    work: int
    path_tokens: int
    loss: int

    def size(self, percent: int) -> int:
        """What it takes of a capacity."""
        return max(self.length, self.loss, math.ceil(100 * self.path_tokens / percent) if percent else 0)


def figures(item: Item, first: int, stop: int, depth: int = WHOLE) -> Figures:
    """Of some branches, cut at a depth: a token at depth d sees d + 1 keys, or twice that without one as work."""
    paths = [path_of(item, branch)[:depth] for branch in range(first, stop)]
    depths = {token: d for path in paths for d, token in enumerate(path)}
    following = {(one, other) for path in paths for one, other in itertools.pairwise(path)}
    num_next = {token: sum(one == token for one, _ in following) for token in depths}
    return Figures(
        length=len(depths),
        work=sum(2 * d + 1 for d in depths.values()),
        path_tokens=sum(d + 1 for token, d in depths.items() if not num_next[token]),
        loss=sum(max(0, len(p) - item.first_loss[b]) for b, p in enumerate(paths, first)),
    )


Piece = tuple[int, int, int, int, int]
"""First and stop branch, depth, start and length; of trees, the last is that of `figures`."""


def cut_item(item: Item, capacity: int, percent: int, *, divides: bool, drops: bool) -> tuple[list[Piece], list[int]]:
    """The pieces of an item over the capacity, and the branches that are left out."""
    branches = range(len(item.ends))
    if drops:
        return [], list(branches)
    if item.kind == SAMPLE:
        tokens = item.segments[0][0]
        starts = range(0, tokens if divides else 1, capacity)
        return [(0, 1, WHOLE, start, min(capacity, tokens - start)) for start in starts], []
    if item.kind != TURNS:
        depth = greatest_depth(item, 0, len(item.ends), capacity, percent)
        return ([piece(item, 0, len(item.ends), depth)], []) if depth else ([], list(branches))
    pieces, left_out, first = [], [], 0
    while first < len(item.ends):
        stops = [stop for stop in branches if stop >= first and fits(item, first, stop + 1, capacity, percent)]
        stop = max(stops, default=first) + 1
        depth = WHOLE if stops else greatest_depth(item, first, stop, capacity, percent)
        if depth:
            pieces.append(piece(item, first, stop, depth))
        else:
            left_out.append(first)
        first = stop
    return pieces, left_out


def fits(item: Item, first: int, stop: int, capacity: int, percent: int, depth: int = WHOLE) -> bool:
    return figures(item, first, stop, depth).size(percent) <= capacity


def piece(item: Item, first: int, stop: int, depth: int) -> Piece:
    return first, stop, depth, 0, figures(item, first, stop, depth).length


def greatest_depth(item: Item, first: int, stop: int, capacity: int, percent: int) -> int:
    """0 if there is none that fits and leaves each branch a loss token that it has."""
    lengths = [len(path_of(item, branch)) for branch in range(first, stop)]
    least = max(
        (item.first_loss[b] + 1 for b, length in enumerate(lengths, first) if item.first_loss[b] < length), default=1
    )
    depths = range(max(lengths), least - 1, -1)
    return next((depth for depth in depths if fits(item, first, stop, capacity, percent, depth)), 0)


Load = tuple[int, int, int]
"""Work, size and path tokens of an item."""
Pack = list[Load]
"""Its items by falling work; of equal work, in the order in which they came."""


def best_exchange(heavy: Pack, light: Pack, capacity: int, width: int, near: int = 8) -> tuple[int, int | None] | None:
    """The item that the heavy pack gives, and the one that it takes or None, which even out most; None: none do.

    No pack has more than `width` items.
    """
    gap = works_of([heavy])[0] - works_of([light])[0]

    def fits(given: Load, taken: Load) -> bool:
        return all(
            sum(item[k] for item in light) + given[k] - taken[k] <= capacity
            and sum(item[k] for item in heavy) - given[k] + taken[k] <= capacity
            for k in (1, 2)
        )

    found: list[tuple[int, int, tuple[int, int | None]]] = []
    for i, item in enumerate(heavy):
        if len(heavy) > 1 and len(light) < width and fits(item, (0, 0, 0)):
            found.append((abs(gap - 2 * item[0]), len(found), (i, None)))
        place = sum(other[0] > item[0] - gap // 2 for other in light)
        for j in range(max(0, place - near), min(place + near, len(light))):
            if fits(item, light[j]):
                found.append((abs(gap - 2 * (item[0] - light[j][0])), len(found), (i, j)))
    if not found or min(found)[0] >= gap:
        return None
    return min(found)[2]


def even_out(
    packs: list[Pack], capacity: int, limit: float, most_tries: int, width: int, most_partners: int = 31
) -> None:
    """Exchange items between the heaviest pack and lighter ones, in place."""
    tries = 0
    while tries < most_tries:
        works = works_of(packs)
        heavy = works.index(max(works))
        if works[heavy] <= limit:
            return
        others = sorted((p for p in range(len(packs)) if p != heavy), key=lambda p: (works[p], p))
        for light in others[:most_partners]:
            tries += 1
            move = best_exchange(packs[heavy], packs[light], capacity, width)
            if move is not None:
                given, taken = move
                moved = [(light, packs[heavy].pop(given))]
                moved += [] if taken is None else [(heavy, packs[light].pop(taken))]
                for pack, item in moved:
                    packs[pack].append(item)
                    packs[pack].sort(key=lambda each: -each[0])
                break
        else:
            return


def works_of(packs: Sequence[Pack]) -> list[int]:
    """The work of each pack."""
    return [sum(item[0] for item in pack) for pack in packs]
