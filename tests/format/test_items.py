"""Rows of trees keep their rules, and rows that break one are found."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given

from packer_cli.format.items import find_wrong_items, loss_by_token, trees_of
from packer_cli.format.trees import GROUP, PAIR, TURNS
from tests.trees import Branch, Item, row_of, rows

PAIR_ITEM = Item(PAIR, [Branch([1, 2, 3, 4, 5], [(3, 5)]), Branch([1, 2, 3, 6], [(3, 4)])], 4)
TURNS_ITEM = Item(TURNS, [Branch([7, 8, 9], [(1, 3)]), Branch([7, 8, 9, 1, 2], [(3, 4)]), Branch([3], [])], 9)


@given(rows())
def test_rows_by_the_definition_keep_the_rules(items: list[Item]) -> None:
    assert find_wrong_items(row_of(items)) is None


@given(rows())
def test_the_loss_of_a_token_is_that_of_all_branches_that_train_it(items: list[Item]) -> None:
    row = row_of(items)
    trees, expected, at = trees_of(row), np.zeros(len(row["input_ids"])), 0
    for item in items:
        for branch in item.branches:
            path = [*trees.paths(trees.branch_segments[at : at + 1]).values]
            assert [int(row["input_ids"][token]) for token in path] == branch.ids
            for start, stop in branch.spans:
                for token in path[start:stop]:
                    expected[token] += 1
            at += 1
    assert loss_by_token(row).tolist() == expected.tolist()


def test_weights_of_spans_are_summed() -> None:
    row = row_of([Item(GROUP, [Branch([1, 2, 3], [(1, 3)]), Branch([1, 2, 3], [(1, 2)])])])
    row["loss_weights"] = np.array([0.5, 2], dtype=np.float32)
    assert find_wrong_items(row) is None
    assert loss_by_token(row).tolist() == [0, 2.5, 0.5]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"branch_segments": [1, 2, 4, 4, 6]}, "its branches do not end in its leaves"),
        ({"cu_seqlens": [0, 13]}, "its borders are not those of its trees"),
        ({"rewards": [0.5]}, "it has 1 rewards for 5 branches"),
        ({"item_kinds": [1]}, "it has 1 item_kinds for 2 items"),
        ({"item_kinds": [1, 4]}, "it has unknown kinds of items, or roles"),
        ({"branch_roles": [1, 0, 0, 1, 2]}, "a pair is not one chosen and one rejected branch"),
        ({"item_ids": [4, 4, 4, 9, 9]}, "branches of an item have other item ids"),
        ({"item_branches": [2, 2]}, "its items have other numbers of branches than it has"),
        ({"branch_segments": [1, 4, 2, 5, 6]}, "its items do not follow one another"),
        ({"branch_loss_spans": [1, 1, 1, 1, 1]}, "it has other numbers of loss spans than its branches"),
        ({"loss_stops": [6, 4, 3, 4]}, "the loss spans of its branch 0 are wrong"),
        ({"loss_starts": [3, 3, 0, 3]}, "the loss spans of its branch 2 are wrong"),
        ({"num_loss_tokens": 7}, "its loss spans are not as many tokens as it counts"),
        ({"num_path_tokens": 9}, "its num_path_tokens is 9, and its trees have 18"),
        ({"attention_work": 9}, "its attention_work is 9, and its trees have 68"),
    ],
)
def test_rows_that_break_a_rule(change: dict[str, Any], why: str) -> None:
    row = row_of([PAIR_ITEM, TURNS_ITEM])
    assert find_wrong_items(row) is None
    assert find_wrong_items({**row, **{name: np.array(value) for name, value in change.items()}}) == why
