"""What became of the items of an epoch, and what sharing their prefixes saves."""

from __future__ import annotations

import numpy as np

from packer_cli.format.metrics import ItemCounts, TreeFigures
from packer_cli.format.ragged import offsets_of
from packer_cli.format.trees import GROUP, PAIR, SAMPLE, TURNS, ItemTrees
from packer_cli.plan.core.items import CutItems, item_pieces, piece_branches, whole_items
from packer_cli.plan.core.types import WHOLE, BoolArray, Fates, Int32Array, ItemRule, Pieces

_NAMES = {SAMPLE: "sample", PAIR: "pair", GROUP: "group", TURNS: "conversation"}


def count_items(trees: ItemTrees, chosen: Int32Array | None, pieces: Pieces, rule: ItemRule) -> Fates:
    """What became of the items. O(segments + pieces).

    Args:
        chosen: int32[m], the items, increasing, with repetitions; None: each once.
        pieces: those that are packed.
    """
    kinds, sample = trees.kinds, pieces.sample
    _, cut = item_pieces(trees, chosen, rule)
    whole = whole_items(trees)
    number, cut_off = np.diff(cut.offsets), _are_cut_off(trees, cut, rule)
    packed, shortened = np.unique(sample), np.unique(cut.pieces.sample[cut_off])
    lost, divided = cut.items[number == 0], cut.items[number > 1]

    def of_kind(items: Int32Array, kind: int) -> int:
        return int((kinds[items] == kind).sum())

    assert cut.pieces.trees is not None
    turns = cut.pieces.trees.stop_branch - cut.pieces.trees.first_branch
    lost_turns = (cut.left_out.stop_branch - cut.left_out.first_branch)[kinds[cut.left_out.item] == TURNS]
    of_conversations = np.diff(trees.branch_offsets)[np.union1d(packed, lost)]
    counts = ItemCounts(
        pairs=of_kind(packed, PAIR),
        pairs_cut=of_kind(shortened, PAIR),
        pairs_left_out=of_kind(lost, PAIR),
        groups=of_kind(packed, GROUP),
        groups_cut=of_kind(shortened, GROUP),
        groups_left_out=of_kind(lost, GROUP),
        conversations=of_kind(packed, TURNS),
        conversations_divided=of_kind(divided, TURNS),
        turns=int(of_conversations[kinds[np.union1d(packed, lost)] == TURNS].sum() - lost_turns.sum()),
        turns_cut=int(turns[cut_off & (kinds[cut.pieces.sample] == TURNS)].sum()),
        turns_left_out=int(lost_turns.sum()),
        samples_cut=of_kind(shortened, SAMPLE),
        samples_left_out=of_kind(lost, SAMPLE),
        over_path_limit=int((whole.sizes(None)[cut.items] <= rule.capacity).sum()),
    )
    return Fates(len(divided), len(shortened), len(lost), counts, tree_figures(trees, pieces))


def _are_cut_off(trees: ItemTrees, cut: CutItems, rule: ItemRule) -> BoolArray:
    """Which of the pieces (bool[m]) of items over the capacity have lost tokens."""
    assert cut.pieces.trees is not None
    is_flat: BoolArray = trees.kinds[cut.pieces.sample] == SAMPLE
    return (cut.pieces.trees.depth < WHOLE) | (is_flat & (not rule.divides))


def tree_figures(trees: ItemTrees, pieces: Pieces) -> TreeFigures:
    """What sharing prefixes saves in these pieces. O(segments + branches)."""
    given = pieces.trees
    assert given is not None
    of, num = piece_branches(trees, pieces), given.stop_branch - given.first_branch
    is_flat = trees.kinds[pieces.sample] == SAMPLE
    lengths = np.minimum(of.ends, np.where(is_flat, pieces.length, given.depth)[of.piece])
    longest = np.maximum.reduceat(lengths, offsets_of(num)[:-1]) if len(num) else num
    return TreeFigures(
        tokens_padded=int((longest * num).sum()),
        tokens_flat=int(given.flat_tokens.sum()),
        tokens_unique=int(pieces.length.sum(dtype=np.int64)),
        attention_flat=int(np.square(lengths).sum()),
        attention_tree=int(given.work.sum()),
        path_tokens=int(given.path_tokens.sum()),
    )


def why_left_out(trees: ItemTrees, chosen: Int32Array | None, rule: ItemRule) -> tuple[Int32Array, list[str]]:
    """Items (int32[k], rising) of which tokens are lost, and for each what was and why."""
    _, cut = item_pieces(trees, chosen, rule)
    whole = whole_items(trees)
    found: list[tuple[int, str]] = []
    given, sample = cut.pieces.trees, cut.pieces.sample
    assert given is not None
    for piece in np.flatnonzero(_are_cut_off(trees, cut, rule)).tolist():
        item = int(sample[piece])
        of = _branches(trees, item, int(given.first_branch[piece]), int(given.stop_branch[piece]))
        depth = int(given.depth[piece]) if given.depth[piece] < WHOLE else rule.capacity
        found.append((item, f"{of} cut off after {depth} tokens"))
    for item, first, stop in zip(*(values.tolist() for values in cut.left_out), strict=True):
        of = _branches(trees, item, first, stop)
        why = "" if rule.drops else ", since no cut that fits leaves each branch a loss token"
        found.append((item, f"{of} left out{why}"))
    found.sort(key=lambda each: each[0])
    reasons = [f"{why_over(trees, whole, item, rule)}; {what}" for item, what in found]
    return np.array([item for item, _ in found], dtype=np.int32), reasons


def why_over(trees: ItemTrees, whole: Pieces, item: int, rule: ItemRule) -> str:
    """By what an item is over the capacity, in words; `whole` is of `whole_items`."""
    assert whole.trees is not None
    capacity, name = rule.capacity, f"the {_NAMES[trees.kinds[item]]}"
    tokens, size, paths = (int(values[item]) for values in (whole.length, whole.trees.size, whole.trees.path_tokens))
    if tokens > capacity:
        return f"{name} has {tokens} tokens, over the largest group's {capacity}"
    if size > capacity:
        return f"{name} has {size} loss tokens, counted once for each branch, over the largest group's {capacity}"
    most = rule.path_percent * capacity // 100
    return (
        f"{name} has {paths:,} path tokens, and --max-path-tokens {rule.path_percent / 100:g}x allows {most:,} in a "
        f"row of {capacity:,}"
    )


def _branches(trees: ItemTrees, item: int, first: int, stop: int) -> str:
    """What of an item is meant, as the subject of a sentence, with its verb."""
    kind, is_all = trees.kinds[item], stop - first == trees.branch_offsets[item + 1] - trees.branch_offsets[item]
    if kind == TURNS and not is_all:
        return f"turn {first + 1} is" if stop == first + 1 else f"turns {first + 1} to {stop} are"
    return "it is"
