"""Exact duplicates in a token store."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import event, given, settings

from packer_cli.format.trees import GROUP, PAIR, SAMPLE
from packer_cli.tokens import duplicates
from packer_cli.tokens.samples import StoreSamples
from tests.naive.duplicates import find_duplicates
from tests.tokens.item_stores import Item, make_item_store, stores


def content_of(item):
    """All that a model could learn from an item; the first token of a branch never has a loss."""
    branches = tuple((tuple(ids), (0, *mask[1:])) for ids, mask in item.branches)
    kind = SAMPLE if item.is_plain else item.kind
    return kind, branches, tuple(item.rewards), tuple(sorted(item.values.items()))


def found_in(store):
    return StoreSamples(store).duplicates.tolist()


@given(parts=stores())
@settings(max_examples=60, deadline=None)
def test_they_are_those_of_plain_python(tmp_path_factory, parts):
    twice = [*parts, *parts[:1]]
    store = make_item_store(tmp_path_factory.mktemp("store"), twice)
    wanted = find_duplicates(content_of(item) for part in twice for batch in part for item in batch)
    event(f"any: {bool(wanted)}, items: {store.index.columns.of_items}, weights: {store.index.columns.is_weighted}")
    assert found_in(store) == wanted


ONE = [([1, 2, 3, 4], [0, 1, 1, 1])]
TWO = [([1, 2, 3, 4], [0, 0, 1, 1]), ([1, 2, 3, 5], [0, 0, 1, 1])]


@pytest.mark.parametrize(
    ("item", "other"),
    [
        (Item(SAMPLE, ONE), Item(SAMPLE, [([1, 2, 3, 4], [0, 1, 0, 1])])),  # Another loss.
        (Item(SAMPLE, ONE), Item(SAMPLE, [([1, 2, 3, 4], [0, 1, 1, 0.5])])),  # Another weight.
        (Item(SAMPLE, ONE), Item(SAMPLE, [([1, 2, 3, 0], [0, 1, 1, 1])])),
        (Item(SAMPLE, ONE), Item(GROUP, ONE)),
        (Item(PAIR, TWO), Item(PAIR, TWO[::-1])),
        (Item(PAIR, TWO), Item(GROUP, TWO)),
        (Item(PAIR, TWO), Item(PAIR, TWO, values={"margin": 0.5})),
        (Item(GROUP, TWO, [0.0, 1.0]), Item(GROUP, TWO, [1.0, 0.0])),
    ],
)
def test_what_differs_is_no_duplicate(tmp_path, item, other):
    parts = [[[item]], [[other, item]], [[other]]]
    assert found_in(make_item_store(tmp_path, parts)) == [2, 3]


def test_each_hash_tells_what_the_other_does_not(tmp_path, monkeypatch):
    """Samples that one of the hashes confuses stay apart by the other one."""
    parts = [[[Item(SAMPLE, [([number, 2], [0, 1])]) for number in (1, 3, 1)]]]
    samples = StoreSamples(make_item_store(tmp_path, parts))
    samples.hashes[:] = 7
    assert samples.duplicates.tolist() == [2]
    monkeypatch.setattr(duplicates, "_second_hashes", lambda batch: np.zeros(len(batch["line"]), np.uint64))
    assert found_in(samples.store) == [2]
