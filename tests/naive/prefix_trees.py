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
    paths = []
    for end in tree.branch_segments[first:stop]:
        path = [end]
        while tree.segment_parents[path[0]] >= 0:
            path.insert(0, tree.segment_parents[path[0]])
        tokens = [place for s in path for place in range(tree.segment_starts[s], tree.segment_starts[s + 1])]
        paths.append(tokens[:depth])
    # Of each token that is kept, the one before it; a segment ends before a fork.
    before = {place: path[k - 1] if k else None for path in paths for k, place in enumerate(path)}
    kept = sorted(before)
    after = [sum(other == place for other in before.values()) for place in kept]
    piece = Piece([], [], [], [])
    segment_of: dict[int, int] = {}
    for place, token in zip(kept, (tree.input_ids[place] for place in kept), strict=True):
        above = before[place]
        if above is not None and after[kept.index(above)] == 1:
            segment_of[place] = segment_of[above]
        else:
            segment_of[place] = len(piece.segment_parents)
            piece.segment_parents.append(-1 if above is None else segment_of[above])
            piece.segment_lengths.append(0)
        piece.segment_lengths[segment_of[place]] += 1
        piece.input_ids.append(token)
    piece.branch_segments.extend(segment_of[path[-1]] for path in paths)
    return piece
