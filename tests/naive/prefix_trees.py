"""Plain-Python twin of `tokens.prefix_trees`: a trie of dicts, straight from docs/formats.md."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

END = None


class Tree(NamedTuple):
    """As `format.trees.Trees`, with the ids of its tokens."""

    input_ids: list[int]
    segment_starts: list[int]
    segment_parents: list[int]
    branch_segments: list[int]


def nodes_of(branch: Sequence[int]) -> list[tuple[int, int | None]]:
    """A branch as nodes: each token and the one after it."""
    return list(zip(branch, [*branch[1:], END], strict=True))


def make_tree(branches: Sequence[Sequence[int]], share_from: int) -> Tree:
    """The tree of one item."""
    tree = Tree([], [0], [], [0] * len(branches))
    nodes = [nodes_of(branch) for branch in branches]
    _add(tree, nodes, list(range(len(branches))), depth=0, parent=-1, share_from=share_from)
    return tree


def _add(
    tree: Tree, nodes: list[list[tuple[int, int | None]]], among: list[int], depth: int, parent: int, share_from: int
) -> None:
    """Add what comes below `depth` of these branches, which share what is above."""
    if not any(len(nodes[number]) > depth for number in among):
        for number in among:
            tree.branch_segments[number] = parent
        return
    trie: dict[tuple[tuple[int, int | None], ...], list[int]] = {}
    for number in among:
        run = tuple(nodes[number][depth : depth + share_from])
        # A run that is too short to be shared is of that branch alone.
        key = run if len(run) == share_from else (*run, (number, -1))
        trie.setdefault(key, []).append(number)
    for of_child in trie.values():
        stop = depth
        first = nodes[of_child[0]]
        while stop < len(first) and all(nodes[number][: stop + 1] == first[: stop + 1] for number in of_child):
            stop += 1
        tree.input_ids.extend(token for token, _ in first[depth:stop])
        tree.segment_starts.append(len(tree.input_ids))
        tree.segment_parents.append(parent)
        _add(tree, nodes, of_child, stop, len(tree.segment_parents) - 1, share_from)


class Piece(NamedTuple):
    """What is left of a tree that is cut: a list a segment and a branch."""

    input_ids: list[int]
    segment_lengths: list[int]
    segment_parents: list[int]
    branch_segments: list[int]


def cut_tree(tree: Tree, first: int, stop: int, depth: int) -> Piece:
    """Some branches of a tree, cut at a depth."""
    sizes: dict[int, int] = {}
    lasts = []
    for end in tree.branch_segments[first:stop]:
        path = [end]
        while tree.segment_parents[path[0]] >= 0:
            path.insert(0, tree.segment_parents[path[0]])
        left = depth
        for segment in path:
            size = min(left, tree.segment_starts[segment + 1] - tree.segment_starts[segment])
            left -= size
            if size:
                sizes[segment], last = size, segment
        lasts.append(last)
    number = {segment: k for k, segment in enumerate(sorted(sizes))}
    return Piece(
        [tree.input_ids[tree.segment_starts[s] + k] for s in number for k in range(sizes[s])],
        [sizes[s] for s in number],
        [number.get(tree.segment_parents[s], -1) for s in number],
        [number[last] for last in lasts],
    )
