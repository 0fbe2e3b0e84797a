"""An item drawn as a tree: the tokens that its branches share on a trunk, and the tokens of each alone beside it.

::

    ┬ 4 tokens, shared by chosen, rejected
    │ masked  | What is the capital of France?
    ├─ chosen, id 12: 2 tokens, 6 with those above; 1 trained
    │  trained | Paris
    └─ rejected, id 13: ...

A trunk may go on below a branch, with the last tokens that several branches share.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from packer_cli.show.decode import Decode
from packer_cli.show.items import BranchRecord, ItemRecord, SegmentRecord
from packer_cli.show.text import Style, part_lines, text_lines
from packer_cli.sizes import counted

_INDENT = "   "
_LEAST_CHARS = 200
"""Characters of a segment that are shown at least."""


def item_lines(item: ItemRecord, decode: Decode, style: Style) -> Iterator[str]:
    """Yield all lines of an item."""
    tokens = f"{counted(item.num_tokens, 'token')} [{item.begin}, {item.begin + item.num_tokens})"
    flat = f" for {item.flat_tokens:,}" if item.flat_tokens > item.num_tokens else ""
    yield from part_lines(f"-- item {item.index}: {item.kind} ", item, tokens + flat, style)
    if item.values:
        yield _INDENT + ", ".join(f"{name} {value:.6g}" for name, value in item.values.items())
    if style.max_chars is not None:
        each = max(style.max_chars // len(item.segments), min(style.max_chars, _LEAST_CHARS))
        style = replace(style, max_chars=each)
    yield from _Drawing(item, decode, style).lines()


class _Drawing:
    def __init__(self, item: ItemRecord, decode: Decode, style: Style) -> None:
        self._item, self._decode, self._style = item, decode, style
        self._children: dict[int | None, list[int]] = {}
        for number, segment in enumerate(item.segments):
            self._children.setdefault(segment.parent, []).append(number)

    def lines(self) -> Iterator[str]:
        width = self._style.width - len(_INDENT)
        for root in self._children[None]:
            lines = self._trunk(root, "┬", width) if root in self._children else self._segment(root, "─ ", "  ", width)
            yield from (_INDENT + line for line in lines)

    def _trunk(self, number: int, sign: str, width: int) -> Iterator[str]:
        """Yield a shared segment, after its sign, and all that goes on with it."""
        yield from self._segment(number, f"{sign} ", "│ ", width)
        *others, last = self._children[number]
        goes_on = last in self._children
        for child in others if goes_on else (*others, last):
            sign, below = ("└─", "  ") if child == last else ("├─", "│ ")
            is_fork = child in self._children
            lines = self._trunk(child, "┬", width - 2) if is_fork else self._segment(child, " ", " ", width - 2)
            yield from (f"{below if k else sign}{line}" for k, line in enumerate(lines))
        if goes_on:
            yield from self._trunk(last, "├", width)

    def _segment(self, number: int, begin: str, lead: str, width: int) -> Iterator[str]:
        """Yield the title and the text of a segment; `lead` stands before each line of its text."""
        segment, style = self._item.segments[number], self._style
        yield begin + style.paint(self._title(number, segment), bold=True)
        before = segment.before if segment.depth else None
        ids, mask, wrap = segment.input_ids, segment.loss_mask, width - len(lead)
        for line in text_lines(self._decode, ids, mask, style, before=before, first=segment.depth, wrap=wrap):
            yield lead + line

    def _title(self, number: int, segment: SegmentRecord) -> str:
        branches = [self._item.branches[branch] for branch in segment.branches]
        size = counted(segment.num_tokens, "token")
        if number in self._children:
            trained = int(np.count_nonzero(segment.loss_mask))
            return f"{size}, shared by {_named(branches)}" + (f"; {trained:,} trained" if trained else "")
        whole = f", {branches[0].num_tokens:,} with those above" if segment.depth else ""
        return f"{_ended(branches)}: {size}{whole}; {branches[0].num_loss_tokens:,} trained"


def _named(branches: Sequence[BranchRecord]) -> str:
    """Name the roles of branches: at most three, or the first and the last."""
    roles = [branch.role for branch in branches]
    if len(roles) > 3:
        return f"{len(roles)} branches, {roles[0]} to {roles[-1]}"
    return ", ".join(roles)


def _ended(branches: Sequence[BranchRecord]) -> str:
    """Name the branches that end together, as they have the same tokens."""
    names = [f"{branch.role}, id {branch.sample_id}" for branch in branches]
    rewards = ["" if branch.reward is None else f", reward {branch.reward:.6g}" for branch in branches]
    return " = ".join(map(operator.add, names, rewards))
