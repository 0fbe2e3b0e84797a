"""Notes for people on a plan: what is lost of samples, and why, and what fills rows of trees."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from packer_cli.format.metrics import ItemCounts, SampleCounts
from packer_cli.format.trees import KINDS, TURNS
from packer_cli.plan.core.cost import pack_sums
from packer_cli.plan.core.cut import Cut
from packer_cli.plan.core.groups import limits_of
from packer_cli.plan.core.types import Plan
from packer_cli.sizes import counted

RAISE_LIMIT = "raise it, or give none for FlexAttention (format tree-flex)"
_NAMES = (*KINDS[:TURNS], "conversation")


def describe_overflow(num_long: int, capacity: int, overflow: str) -> str | None:
    """Say how many samples `drop` or `truncate` removes or cuts; None if no tokens are lost.

    >>> describe_overflow(2, 512, "drop")
    '--overflow drop: 2 samples are longer than 512 tokens and left out'
    """
    what = {"drop": "left out", "truncate": "cut off there"}.get(overflow)
    if not num_long or what is None:
        return None
    number = "1 sample is" if num_long == 1 else f"{num_long:,} samples are"
    return f"--overflow {overflow}: {number} longer than {capacity:,} tokens and {what}"


def overflow_notes(counts: SampleCounts, capacity: int, overflow: str, max_path_tokens: str | None) -> list[str]:
    """Write notes for people on what a plan with these `counts` leaves out."""
    if counts.items is not None:
        return _item_notes(counts, counts.items, capacity, max_path_tokens)
    note = describe_overflow(counts.dropped + counts.truncated, capacity, overflow)
    return [f"{note}; {counts.tokens:,} tokens are planned"] if note else []


def _item_notes(counts: SampleCounts, items: ItemCounts, capacity: int, max_path_tokens: str | None) -> list[str]:
    nouns, fates = ("pair", "group", "conversation", "turn", "sample"), ("cut off", "left out", "divided")
    keys = {f"{noun}s_{fate.removesuffix(' off').replace(' ', '_')}": (noun, fate) for noun in nouns for fate in fates}
    found = [(getattr(items, key, 0), *words) for key, words in keys.items()]
    what = ", ".join(f"{counted(number, noun)} {fate}" for number, noun, fate in found if number)
    notes = [f"too long for rows of {capacity:,} tokens: {what}; {counts.tokens:,} tokens are planned"] if what else []
    if num := items.over_path_limit:
        fit = "fits by its tokens and exceeds" if num == 1 else "fit by their tokens and exceed"
        notes.append(f"{num:,} of these {fit} --max-path-tokens {max_path_tokens} alone; {RAISE_LIMIT}")
    return notes


def reasons_lost(cut: Cut) -> Iterator[tuple[int, str]]:
    """Yield each sample of which tokens are lost, with its loss and the reason."""
    no_cut = "" if cut.rule.overflow == "drop" else ", since no cut that fits leaves each branch a loss token"
    for sample, first, stop, kept in zip(*(values.tolist() for values in cut.lost()), strict=True):
        fate = f"cut off after {kept} tokens" if kept else f"left out{no_cut}"
        yield sample, f"{why_over(cut, sample)}; {_branches(cut, sample, first, stop)} {fate}"


def why_over(cut: Cut, sample: int) -> str:
    """Say by which of its needs a sample or an item is over the capacity."""
    kind, _, needs = cut.facts_of(sample)
    name, limits = f"the {_NAMES[kind]}", limits_of(cut.rule.capacity, cut.rule.limits)
    if needs[0] > limits[0]:
        return f"{name} has {needs[0]} tokens, over the largest group's {limits[0]}"
    if needs[1] > limits[1]:
        return f"{name} has {needs[1]} loss tokens, counted once for each branch, over the largest group's {limits[1]}"
    return (
        f"{name} has {needs[2]:,} path tokens, and --max-path-tokens {cut.rule.limits[1] / 100:g}x allows "
        f"{limits[2]:,} in a row of {limits[0]:,}"
    )


def _branches(cut: Cut, sample: int, first: int, stop: int) -> str:
    """Name branches, as the subject of a sentence, with its verb."""
    kind, num_branches, _ = cut.facts_of(sample)
    if kind != TURNS or stop - first == num_branches:
        return "it is"
    return f"turn {first + 1} is" if stop == first + 1 else f"turns {first + 1} to {stop} are"


def row_notes(plan: Plan, max_path_tokens: str | None) -> list[str]:
    """Write notes for people where rows of trees reach another limit before they are full of tokens. O(pieces)."""
    packs = plan.packs
    if not plan.limits:
        return []
    nearly_full = 0.9 * np.array([group.capacity for group in plan.groups])[packs.group]
    tokens, *others = (pack_sums(need, packs.offsets, packs.pieces) for need in plan.pieces.needs)
    by_loss, by_paths = (
        (tokens < nearly_full) & (100 * taken >= percent * nearly_full)
        for taken, percent in zip(others, plan.limits, strict=True)
    )
    narrow = "narrow --loss-on, so that shared tokens have no loss"
    found = (
        (by_paths, f"path tokens (--max-path-tokens {max_path_tokens})", RAISE_LIMIT),
        (by_loss, "loss tokens, counted once for each branch,", narrow),
    )
    return [
        f"{rows.sum():,} of {len(packs):,} rows are full of {what} before they are full of tokens; {remedy}"
        for rows, what, remedy in found
        if 100 * rows.sum() > len(packs)
    ]
