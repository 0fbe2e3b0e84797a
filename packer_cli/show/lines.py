"""A view in lines for people, items drawn as trees; the texts are in `text.py`."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from packer_cli.format.layout import ONE_GPU, Layout
from packer_cli.show.decode import Decode
from packer_cli.show.packs import BranchRecord, PartRecord, SegmentRecord
from packer_cli.show.text import Style, one_line, text_lines
from packer_cli.show.view import Place, View
from packer_cli.sizes import counted

_CP_SHARDING = {"zigzag": "per sequence (zigzag)", "document": "per document"}


def view_lines(view: View, decode: Decode, style: Style) -> Iterator[str]:
    """Yield all lines of one view."""
    yield style.paint(_title(view), bold=True)
    yield ""
    for name, value in _facts(view):
        yield f"  {name:<16}{value}"
    if len(view.step_places) > 1:
        yield ""
        yield from _step_lines(view)
    if style.is_colored and (view.samples or view.items):
        yield ""
        yield f"  {style.mask('masked: no loss', False)}   {style.mask('trained: carries a loss', True)}"
    for part in view.items or view.samples:
        yield ""
        yield from part_lines(part, decode, style)


def _title(view: View) -> str:
    place = view.shown
    pack = "filler" if view.pack is None else f"pack {view.pack.pack_id} of {one_line(view.pack.group)}"
    if place is None:
        return f"{pack}: not used in epoch {view.epoch}"
    return f"epoch {place.epoch}, step {place.row.step}, iteration {place.row.iteration}, rank {place.rank}: {pack}"


def _facts(view: View) -> Iterator[tuple[str, str]]:
    place, pack = view.shown, view.pack
    if pack is None:
        assert place
        yield "tokens", "a few of padding without a loss: the rank has no pack in this iteration"
    else:
        if pack.num_items is None:
            yield "samples", f"{pack.num_samples:,}"
        else:
            yield (
                "items",
                f"{pack.num_items:,}, of {pack.num_samples:,} {'branch' if pack.num_samples == 1 else 'branches'}",
            )
        yield "tokens", f"{pack.num_tokens:,} of {pack.capacity:,} (capacity)"
        if pack.flat_tokens is not None:
            saved = 1 - pack.num_tokens / pack.flat_tokens
            yield "flat tokens", f"{pack.flat_tokens:,}, of which sharing prefixes saves {saved:.1%}"
            yield "path tokens", f"{pack.num_path_tokens:,}"
        share = pack.num_loss_tokens / (pack.flat_tokens or pack.num_tokens)
        whole = f"; the whole step has {place.row.global_num_loss_tokens:,}" if place else ""
        yield (
            "loss tokens",
            f"{pack.num_loss_tokens:,} ({share:.1%} of the {'flat ' if pack.flat_tokens else ''}tokens){whole}",
        )
        if pack.loss_weight is not None:
            whole = f"; the whole step has {place.row.global_loss_weight:,.6g}" if place else ""
            yield "loss weight", f"{pack.loss_weight:,.6g}, the sum over loss tokens{whole}"
        to_row = f", {place.row.row_length - pack.num_tokens:,} to the iteration's row length" if place else ""
        yield "padding", f"{pack.capacity - pack.num_tokens:,} to the capacity{to_row}, if the loader pads"
        yield "attention work", f"{pack.attention_work:,}"
        if pack.cp_sharding is not None:
            yield "CP sharding", _CP_SHARDING[pack.cp_sharding]
    if place is None:
        layout = pack.layout if pack else ONE_GPU
        yield ("SP degree", f"{layout.sp}") if layout == Layout(sp=layout.sp) else ("replica", f"{layout}")
        yield "used", "before the set was dealt to other GPUs, in an earlier part of the epoch"
        return
    is_plain = place.layout == Layout(sp=place.layout.sp)
    yield ("SP degree", _sharing(view, place)) if is_plain else ("replica", _replica(place))
    yield "DP rank", f"{place.row.dp_rank} of {place.row.dp_size}"


def _replica(place: Place) -> str:
    layout, first = place.layout, place.rank - place.row.place
    ranks = zip(layout.place(place.row.place)._asdict().items(), layout.place_sizes, strict=True)
    own = ", ".join(f"{name[:2].upper()} rank {rank} of {size}" for (name, rank), size in ranks if size > 1)
    return f"{layout}: ranks {first} to {first + layout.num_gpus - 1} run this row; rank {place.rank} is {own}"


def _sharing(view: View, place: Place) -> str:
    if place.layout.sp == 1:
        return "1: this rank has the whole row"
    first = place.rank - place.row.place
    text = f"{place.layout.sp}: ranks {first} to {first + place.layout.sp - 1} share this row"
    if view.pack is None or view.pack.rank_tokens is None:
        return text
    begin, end = view.pack.rank_tokens
    end = min(end, view.pack.num_tokens)
    if begin >= end:
        return f"{text}; with Ulysses, rank {place.rank} has only padding"
    name = "sample" if view.pack.num_items is None else "item"
    held = [part.index for part in view.pack.parts if part.begin < end and part.begin + part.num_tokens > begin]
    samples = f"{name} {held[0]}" if len(held) == 1 else f"{name}s {held[0]} to {held[-1]}"
    return f"{text}; with Ulysses, rank {place.rank} has tokens [{begin}, {end}), {samples}"


def _step_lines(view: View) -> Iterator[str]:
    assert view.shown
    rows = [
        (
            f"{place.row.iteration}",
            "filler" if place.pack is None else f"{place.pack}",
            one_line(place.group),
            _how_to_show(place, view.shown),
        )
        for place in view.step_places
    ]
    header = ("iteration", "pack", "group", "")
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    iterations = {place.row.iteration for place in view.step_places}
    where = f"step {view.shown.row.step}" if len(iterations) > 1 else f"iteration {view.shown.row.iteration}"
    if len(iterations) == len(rows):
        yield f"  {where} has {counted(len(rows), 'iteration')}:"
    else:  # Other ranks have other numbers of them.
        yield f"  rank {view.shown.rank} runs {len(rows):,} micro-batches in {where}:"
    for row in (header, *rows):
        cells = (f"{row[0]:>{widths[0]}}", f"{row[1]:>{widths[1]}}", f"{row[2]:<{widths[2]}}", row[3])
        yield f"    {'  '.join(cells)}".rstrip()


def _how_to_show(place: Place, shown: Place) -> str:
    if place == shown:
        return "shown below"
    if place.row.iteration != shown.row.iteration:
        return f"--iteration {place.row.iteration}"
    return f"--pack {place.pack}"


_INDENT = "   "
_LEAST_CHARS = 200
"""Characters of a segment that are shown at least."""


def part_lines(part: PartRecord, decode: Decode, style: Style) -> Iterator[str]:
    """Yield all lines of a sample, or of an item, drawn as a tree: the tokens of several branches on a trunk, the
    others beside it.

    ::

        ┬ 4 tokens, shared by chosen, rejected
        │ masked  | What is the capital of France?
        ├─ chosen, id 12: 2 tokens, 6 with those above; 1 trained
        │  trained | Paris
        └─ rejected, id 13: ...

    A trunk may go on below a branch, with the last tokens that several branches share.
    """
    begin = f"-- sample {part.index} " if part.kind is None else f"-- item {part.index}: {part.kind} "
    yield style.paint(begin + "-" * max(2, style.width - len(begin)), "cyan")
    number = part.sample_id if part.item_id is None else part.item_id
    place = part.source if part.file is None else f"{part.file}:{part.line}"
    flat = f" for {part.flat_tokens:,}" if part.flat_tokens and part.flat_tokens > part.num_tokens else ""
    tokens = f"{counted(part.num_tokens, 'token')} [{part.begin}, {part.begin + part.num_tokens}){flat}"
    piece = f", a piece of its sample, from token {part.start:,} on" if part.start else ""
    yield f"   id {number}, {one_line(place)}, {tokens}, {part.num_loss_tokens:,} trained{piece}"
    if part.kept:
        yield _INDENT + ", ".join(f"{name} {one_line(value or '-')}" for name, value in part.kept.items())
    if part.values:
        yield _INDENT + ", ".join(f"{name} {value:.6g}" for name, value in part.values.items())
    if part.segments is None or part.branches is None:
        yield from text_lines(decode, part.input_ids, part.loss_mask, style)
        return
    if style.max_chars is not None:
        each = max(style.max_chars // len(part.segments), min(style.max_chars, _LEAST_CHARS))
        style = replace(style, max_chars=each)
    yield from _Drawing(part.segments, part.branches, decode, style).lines()


class _Drawing:
    def __init__(
        self, segments: Sequence[SegmentRecord], branches: Sequence[BranchRecord], decode: Decode, style: Style
    ) -> None:
        self._segments, self._branches, self._decode, self._style = segments, branches, decode, style
        self._children: dict[int | None, list[int]] = {}
        for number, segment in enumerate(segments):
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
        segment, style = self._segments[number], self._style
        yield begin + style.paint(self._title(number, segment), bold=True)
        ids, mask, before, wrap = segment.input_ids, segment.loss_mask, segment.before.tolist(), width - len(lead)
        for line in text_lines(self._decode, ids, mask, style, before=before, first=segment.depth, wrap=wrap):
            yield lead + line

    def _title(self, number: int, segment: SegmentRecord) -> str:
        branches = [self._branches[branch] for branch in segment.branches]
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
