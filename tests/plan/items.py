"""Items for tests: made by hypothesis, and long ones by a seed."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from packer_cli.format.trees import GROUP, PAIR, SAMPLE, TURNS, ItemTrees
from packer_cli.plan.core.cut import Samples
from packer_cli.plan.core.items import whole_items
from tests.naive.items import Item, ends_of

NONE = 2**31 - 1
"""Percent of path tokens that no row exceeds."""


def item_trees(items):
    """The items (`naive.items.Item`) as a store gives them."""
    none = np.empty(0, dtype=np.int32)

    def ends(sizes):
        return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)

    def joined(lists):
        return np.concatenate([none, *(np.array(each, dtype=np.int32) for each in lists)])

    return ItemTrees(
        kinds=np.array([item.kind for item in items], dtype=np.int8),
        segment_offsets=ends([len(item.segments) for item in items]),
        segment_ends=joined([ends_of(item) for item in items]),
        segment_parents=joined([[parent for _, parent in item.segments] for item in items]),
        branch_offsets=ends([len(item.ends) for item in items]),
        branch_segments=joined([item.ends for item in items]),
        first_loss=joined([item.first_loss for item in items]),
    )


def samples_of(trees, among=None):
    """The samples of a plan of these items."""
    return Samples(lengths=whole_items(trees).length, trees=trees, among=among)


NODES = st.recursive(
    st.tuples(st.integers(1, 9), st.just(())),
    lambda inner: st.tuples(st.integers(1, 9), st.lists(inner, min_size=2, max_size=3)),
    max_leaves=5,
)


@st.composite
def items(draw):
    """One item: a tree, or several, whose leaves are branches, some of them twice."""
    kind = draw(st.sampled_from([SAMPLE, PAIR, GROUP, TURNS]))
    if kind == SAMPLE:
        length = draw(st.integers(1, 60))
        return Item(SAMPLE, [(length, -1)], [0], [draw(st.integers(0, length - 1))])
    segments, ends, depths = [], [], []

    def add(node, parent, above):
        length, children = node
        segments.append((length, parent))
        own = len(segments) - 1
        if not children:
            ends.append(own)
            depths.append(above + length)
        for child in children:
            add(child, own, above + length)

    for root in draw(st.lists(NODES, min_size=1, max_size=2)):
        add(root, -1, 0)
    if draw(st.booleans()):  # Equal branches.
        again = draw(st.integers(0, len(ends) - 1))
        ends.append(ends[again])
        depths.append(depths[again])
    first = [draw(st.one_of(st.integers(0, depth - 1), st.just(2**31 - 1))) for depth in depths]
    return Item(kind, segments, ends, first)


def long_pairs(num, seed=0):
    """Pairs with long prompts of 200 to 6,000 tokens, as (chosen, rejected) of 50 to 800."""
    generator = np.random.default_rng(seed)
    prompts = np.exp(generator.uniform(np.log(200), np.log(6000), num)).astype(int).tolist()
    completions = generator.integers(50, 800, (num, 2)).tolist()
    return item_trees(
        [
            Item(PAIR, [(prompt, -1), (one, 0), (other, 0)], [1, 2], [prompt + 1, prompt + 1])
            for prompt, (one, other) in zip(prompts, completions, strict=True)
        ]
    )


def thinking_turns(num, num_turns=8, seed=0):
    """Conversations whose turns think: the thoughts of a turn are not in the history of the next."""
    generator = np.random.default_rng(seed)
    found = []
    for _ in range(num):
        history, turns = generator.integers(50, 300, num_turns), generator.integers(200, 1200, num_turns)
        segments, ends, first, depth = [], [], [], 0
        for k in range(num_turns):
            segments += [(int(history[k]), 2 * k - 2 if k else -1), (int(turns[k]), 2 * k)]
            depth += int(history[k])
            ends.append(2 * k + 1)
            first.append(depth + 1)
        found.append(Item(TURNS, segments, ends, first))
    return item_trees(found)
