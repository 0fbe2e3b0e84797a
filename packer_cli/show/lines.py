"""A view in lines for people; the texts are in `text.py`, trees in `tree_lines.py`."""

from __future__ import annotations

from collections.abc import Iterator

from packer_cli.format.layout import ONE_GPU, Layout
from packer_cli.show.decode import Decode
from packer_cli.show.items import ItemRecord
from packer_cli.show.samples import SampleRecord
from packer_cli.show.text import Style, one_line, part_lines, text_lines
from packer_cli.show.tree_lines import item_lines
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
    if style.is_colored and view.parts:
        yield ""
        yield f"  {style.mask('masked: no loss', False)}   {style.mask('trained: carries a loss', True)}"
    for part in view.parts:
        yield ""
        yield from _part_lines(part, decode, style)


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
    parts, name = view.pack.parts, view.pack.parts[0].unit
    held = [part.index for part in parts if part.begin < end and part.begin + part.num_tokens > begin]
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


def _part_lines(part: SampleRecord | ItemRecord, decode: Decode, style: Style) -> Iterator[str]:
    return item_lines(part, decode, style) if isinstance(part, ItemRecord) else _sample_lines(part, decode, style)


def _sample_lines(sample: SampleRecord, decode: Decode, style: Style) -> Iterator[str]:
    length = len(sample.input_ids)
    tokens = f"{counted(length, 'token')} [{sample.begin}, {sample.begin + length})"
    yield from part_lines(f"-- sample {sample.index} ", sample, tokens, style)
    yield from text_lines(decode, sample.input_ids, sample.loss_mask, style)
