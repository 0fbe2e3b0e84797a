"""Prefix trees against a trie of dicts, and what every tree keeps."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packer_cli.corpus.ragged import join_arrays
from packer_cli.format.trees import SHARE_FROM, Trees, find_wrong_tree
from packer_cli.tokens.prefix_trees import NOTHING_SHARED, make_trees
from tests.naive import prefix_trees as naive


def trees_of(items, share_from, dtype=np.uint16):
    """The ids and trees of items, each of branches of ids."""
    branches = join_arrays([np.array(branch, dtype=dtype) for item in items for branch in item])
    input_ids, trees = make_trees(branches, np.cumsum([0, *map(len, items)]), share_from)
    assert input_ids.values.dtype == dtype
    columns = input_ids, *trees.values()
    rows = [[each.values[each.offsets[k] : each.offsets[k + 1]] for each in columns] for k in range(len(items))]
    return [(ids, Trees(*of_item)) for ids, *of_item in rows]


@st.composite
def items(draw):
    """Branches that fork at every place: new ones, and those that continue, repeat or leave a beginning of others."""
    token = st.integers(0, draw(st.sampled_from([1, 3, 99])))
    branches = [draw(st.lists(token, min_size=1, max_size=12))]
    for _ in range(draw(st.integers(0, 8))):
        other = draw(st.sampled_from(branches))
        begin = other[: draw(st.integers(0, len(other)))]
        branches.append((begin + draw(st.lists(token, max_size=6))) or [0])
    return branches


@given(st.lists(items(), min_size=1, max_size=4), st.sampled_from([1, 2, 3, 5, 13]), st.booleans())
@settings(max_examples=80)
def test_trees_are_those_of_a_trie(items, share_from, is_wide):
    for (ids, trees), item in zip(trees_of(items, share_from, np.int32 if is_wide else np.uint16), items, strict=True):
        twin = naive.make_tree(item, share_from)
        assert (ids.tolist(), *(each.tolist() for each in trees)) == twin
        assert find_wrong_tree(trees, len(ids)) is None
        assert trees.branch_lengths().tolist() == [len(branch) for branch in item]
        paths = trees.paths(trees.branch_segments)
        after = {}
        for k, branch in enumerate(item):
            path = paths.values[paths.offsets[k] : paths.offsets[k + 1]]
            assert ids[path].tolist() == branch
            for place, follows in zip(path.tolist(), [*branch[1:], None], strict=True):
                assert after.setdefault(place, follows) == follows  # One label for each token.
        shared = trees.lengths[np.isin(np.arange(len(trees.lengths)), trees.segment_parents)]
        assert (shared >= share_from).all()


SHORT, LONG = list(range(SHARE_FROM - 1)), list(range(SHARE_FROM))


@pytest.mark.parametrize(
    ("branches", "lengths", "parents", "ends"),
    [
        ([[*LONG, 7], [*LONG, 9]], [129, 129], [-1, -1], [0, 1]),  # 127 nodes: the last shared token is in both.
        ([[*LONG, 7, 8], [*LONG, 7, 9]], [128, 2, 2], [-1, 0, 0], [1, 2]),
        ([LONG, [*LONG, 7]], [128, 129], [-1, -1], [0, 1]),  # A prefix of another: its end is a fork.
        ([[*LONG, 7], [*LONG, 7, 8]], [128, 1, 2], [-1, 0, 0], [1, 2]),
        ([LONG, [5], LONG], [128, 1], [-1, -1], [0, 1, 0]),
        ([SHORT, SHORT], [127, 127], [-1, -1], [0, 1]),
        ([[7], [7]], [1, 1], [-1, -1], [0, 1]),
    ],
)
def test_what_is_shared(branches, lengths, parents, ends):
    ((_, trees),) = trees_of([branches], SHARE_FROM)
    assert trees.lengths.tolist() == lengths
    assert trees.segment_parents.tolist() == parents
    assert trees.branch_segments.tolist() == ends


def test_a_short_run_goes_down_and_counts_there():
    """The fork 100 tokens below the start moves up; the next is then 150 below the start, not 50 below that fork."""
    start, other, rest = list(range(101)), [500] * 60, list(range(200, 260))
    ((_, trees),) = trees_of([[[*start, *rest, 1], [*start, *other], [*start, *rest, 2]]], SHARE_FROM)
    assert trees.lengths.tolist() == [160, 2, 2, 161]
    assert trees.segment_parents.tolist() == [-1, 0, 0, -1]
    assert trees.branch_segments.tolist() == [1, 3, 2]


def test_nothing_is_shared_unless_asked_for():
    ((ids, trees),) = trees_of([[LONG * 2, LONG * 2]], NOTHING_SHARED)
    assert ids.tolist() == LONG * 4
    assert trees.segment_parents.tolist() == [-1, -1]
