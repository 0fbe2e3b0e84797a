"""What items take of a row, how long ones are cut, and that every branch is somewhere."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packer_cli.errors import PlanError, RunError
from packer_cli.format.metrics import ItemCounts, TreeFigures
from packer_cli.format.trees import GROUP, PAIR, SAMPLE, TURNS, Trees
from packer_cli.plan.core.cut import pieces_to_plan
from packer_cli.plan.core.groups import SizeRule
from packer_cli.plan.core.items import piece_branches, select_items, whole_items
from packer_cli.plan.notes import overflow_notes, reasons_lost
from tests.naive import items as naive
from tests.plan.items import NONE, item_trees, items, samples_of, thinking_turns

PERCENTS = st.sampled_from([NONE, 100, 150, 200])


def pair(prompt, chosen, rejected):
    return naive.Item(PAIR, [(prompt, -1), (chosen, 0), (rejected, 0)], [1, 2], [prompt + 1, prompt + 1])


def turns(*lengths):
    """Turns of (history, answer) tokens."""
    segments, ends, first, depth = [], [], [], 0
    for k, (history, answer) in enumerate(lengths):
        segments += [(history, 2 * k - 2 if k else -1), (answer, 2 * k)]
        depth += history
        ends.append(2 * k + 1)
        first.append(depth)
    return naive.Item(TURNS, segments, ends, first)


def cut_by(trees, rule, chosen=None):
    """The cut of items, each once or as often as a rising list says."""
    among = None if chosen is None else np.array(chosen, dtype=np.int32)
    return samples_of(trees, among).cut(rule, 0)


SAMPLE_OF_9 = naive.Item(SAMPLE, [(9, -1)], [0], [2])


@given(st.lists(items(), max_size=5), PERCENTS)
def test_numbers_of_whole_items_are_those_of_their_tokens(some, percent):
    trees = item_trees(some)
    whole = whole_items(trees)
    expected = [naive.figures(item, 0, len(item.ends)) for item in some]
    assert whole.samples is None
    assert whole.length.tolist() == [each.length for each in expected]
    assert whole.sizes((100, percent)).tolist() == [
        each.length if item.kind == SAMPLE else each.size(percent) for item, each in zip(some, expected, strict=True)
    ]
    assert whole.work.tolist() == [each.work for each in expected]
    assert whole.path_tokens.tolist() == [each.path_tokens for each in expected]
    for k, item in enumerate(some):  # The rows of a set count the same.
        lengths, parents = zip(*item.segments, strict=True)
        row = Trees(np.concatenate([[0], np.cumsum(lengths)]), np.array(parents), np.array(item.ends))
        assert (row.attention_work(), row.num_path_tokens()) == (whole.work[k], whole.path_tokens[k])
        alone = select_items(trees, np.array([k]))
        assert piece_branches(alone, whole_items(alone))[2].tolist() == row.branch_lengths().tolist()


@given(
    st.lists(items(), min_size=1, max_size=5),
    PERCENTS,
    st.integers(1, 40),
    st.sampled_from(["split", "truncate", "drop"]),
    st.data(),
)
def test_long_items_are_cut_as_every_depth_and_run_tried(some, percent, capacity, overflow, data):
    trees = item_trees(some)
    rule, divides, drops = SizeRule(capacity, overflow, (100, percent)), overflow == "split", overflow == "drop"
    chosen = sorted(data.draw(st.lists(st.integers(0, len(some) - 1), min_size=1, max_size=8)))
    cut = cut_by(trees, rule, chosen)
    pieces = cut.pieces
    expected, left_out = [], []
    for item in chosen:
        branches = len(some[item].ends)
        found = [naive.piece(some[item], 0, branches, naive.WHOLE)], list[int]()
        if whole_items(trees).sizes((100, percent))[item] > capacity:
            found = naive.cut_item(some[item], capacity, percent, divides=divides, drops=drops)
        expected += [(item, *each) for each in found[0]]
        left_out += [(item, branch) for branch in found[1]]
    columns = (pieces.sample, pieces.first_branch, pieces.stop_branch, pieces.depth, pieces.start, pieces.length)
    assert list(zip(*(each.tolist() for each in columns), strict=True)) == expected
    runs = zip(*(each.tolist() for each in cut.lost()), strict=True)
    found = [(item, branch) for item, first, stop, kept in runs if not kept for branch in range(first, stop)]
    assert found == sorted(set(left_out))
    cut.check(pieces)
    counts = cut.counts(pieces).items
    assert counts.turns_left_out == sum(some[item].kind == TURNS for item, _ in set(left_out))
    assert {item for item, _ in left_out} <= {item for item, _ in reasons_lost(cut)}


@given(st.lists(items(), max_size=4), st.data())
def test_items_selected_are_the_same_items(some, data):
    chosen = data.draw(st.lists(st.integers(0, len(some) - 1), max_size=6)) if some else []
    assert naive.items_of(select_items(item_trees(some), np.array(chosen, dtype=int))) == [some[i] for i in chosen]


def test_a_piece_that_is_not_so_is_found():
    trees, rule = item_trees([pair(10, 5, 7), turns((4, 9), (5, 9), (3, 9))]), SizeRule(27, "split", (100, NONE))
    cut = cut_by(trees, rule)
    pieces = cut.pieces
    assert pieces.sample.tolist() == [0, 1, 1]

    def wrong(**changes):
        return replace(pieces, **{k: np.array(v, np.int32) for k, v in changes.items()})

    with pytest.raises(PlanError, match=r"^the numbers of a piece are not those of its branches$"):
        cut.check(wrong(stop_branch=[1, *pieces.stop_branch[1:]]))
    with pytest.raises(PlanError, match=r"^a branch of item 1 is not in as many pieces as were asked for$"):
        cut.check(pieces.take(np.array([0, 2])))
    with pytest.raises(PlanError, match=r"^an item that is not too long is cut$"):
        replace(cut, rule=rule._replace(capacity=80)).check(pieces)
    with pytest.raises(PlanError, match=r"^a piece is over the capacity$"):
        replace(cut, rule=rule._replace(capacity=26)).check(pieces)


@pytest.mark.parametrize(
    ("name", "piece", "value"),
    [
        ("first_branch", 0, -1), ("first_branch", 0, 2), ("stop_branch", 0, 3), ("stop_branch", 2, 10**9),
        ("depth", 0, 0), ("depth", 0, -5), ("depth", 2, 8), ("start", 0, 1), ("start", 3, -1), ("sample", 0, -1),
        ("sample", 3, 4),
    ],
)  # fmt: skip
def test_a_piece_outside_of_its_item_is_found(name, piece, value):
    trees = select_items(item_trees([pair(10, 5, 7), SAMPLE_OF_9]), np.array([0, 1, 1, 1]))
    pieces = whole_items(trees)
    change = np.array(pieces.sample if name == "sample" else getattr(pieces, name))
    change[piece] = value
    wrong = replace(pieces, **{"samples" if name == "sample" else name: change})
    what = "a piece is of no item" if name == "sample" else "a piece has branches or tokens that its item has not"
    with pytest.raises(PlanError, match=f"^{what}$"):
        cut_by(trees, SizeRule(5, "split", (100, NONE))).check(wrong)


def test_what_is_lost_is_listed_with_its_reason():
    some = [
        pair(20, 4, 30), pair(60, 5, 5), SAMPLE_OF_9, turns((10, 30), (5, 8), (60, 9), (5, 9)),
        naive.Item(GROUP, [(26, -1), (4, 0), (4, 0), (4, 0)], [1, 2, 3], [26] * 3),
    ]  # fmt: skip
    trees = item_trees(some)
    cut = cut_by(trees, SizeRule(40, "truncate", (100, 200)))
    over, no_cut = "over the largest group's 40", "left out, since no cut that fits leaves each branch a loss token"
    items_lost, reasons = zip(*reasons_lost(cut), strict=True)
    assert items_lost == (0, 1, 3, 4)
    assert list(reasons) == [
        f"the pair has 54 tokens, {over}; it is cut off after 36 tokens",
        f"the pair has 70 tokens, {over}; it is {no_cut}",
        f"the conversation has 136 tokens, {over}; turns 3 to 4 are {no_cut}",
        f"the group has 90 path tokens, and --max-path-tokens 2x allows 80 in a row of 40; it is {no_cut}",
    ]
    counts = cut.counts(cut.pieces)
    assert counts.items == ItemCounts(
        pairs=1, pairs_cut=1, pairs_left_out=1, groups_left_out=1, conversations=1, conversations_divided=1, turns=2,
        turns_left_out=2, over_path_limit=1,
    )  # fmt: skip
    assert overflow_notes(counts, 40, "truncate", "2x") == [
        (
            "too long for rows of 40 tokens: 1 pair cut off, 1 pair left out, 1 group left out, 1 conversation "
            "divided, 2 turns left out; 112 tokens are planned"
        ),
        (
            "1 of these fits by its tokens and exceeds --max-path-tokens 2x alone; raise it, or give none for "
            "FlexAttention (format tree-flex)"
        ),
    ]


def test_figures_say_what_sharing_saves():
    trees = item_trees([pair(10, 5, 7), SAMPLE_OF_9])
    cut = cut_by(trees, SizeRule(64, "split", (100, NONE)))
    assert cut.counts(cut.pieces).trees == TreeFigures(
        tokens_padded=2 * 17 + 9,
        tokens_flat=15 + 17 + 9,
        tokens_unique=22 + 9,
        attention_flat=15**2 + 17**2 + 9**2,
        attention_tree=15**2 + 17**2 - 10**2 + 9**2,
        path_tokens=15 + 17 + 9,
    )


def test_an_item_over_the_capacity_by_its_loss_tokens_says_so():
    trees = item_trees([pair(29, 5, 5)._replace(first_loss=[1, 1])])
    reason = "the pair has 66 loss tokens, counted once for each branch, over the largest group's 40; it is cut off"
    assert next(reasons_lost(cut_by(trees, SizeRule(40, "truncate", (100, 200)))))[1].startswith(reason)


def test_error_says_how_long_the_longest_is():
    trees = item_trees([pair(10, 5, 7)])
    samples = samples_of(trees)
    with pytest.raises(RunError, match=r"^the longest item takes 22 tokens, over the largest group's 21; choose"):
        pieces_to_plan(samples, SizeRule(21, "error", (100, NONE)), 0)
    with pytest.raises(RunError, match=r"^the longest item takes 32 tokens"):
        pieces_to_plan(samples, SizeRule(31, "error", (100, 100)), 0)


def test_a_branch_alone_has_one_path():
    """The last turn's history is that of all earlier turns; alone, it is a run without forks."""
    conversation = naive.items_of(thinking_turns(1, 30))[0]
    found = naive.figures(conversation, 29, 30)
    assert found.path_tokens == found.length
