"""A view in lines for people.

With colors, the text stands as it is, masked tokens dim and trained ones green. Without, each run of equal mask begins
a line with its name, and a line without a name goes on after a newline of the text: nothing in the text can look so.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass

import click
import numpy as np

from packer_cli.format.layout import ONE_GPU, Layout
from packer_cli.show.contents import SampleRecord
from packer_cli.show.decode import Decode, Run, decode_runs, decode_tokens, shorten
from packer_cli.show.view import Place, View
from packer_cli.sizes import counted

_MASKED, _TRAINED = "masked", "trained"
_WIDTH = len(_TRAINED)
_CP_SHARDING = {"zigzag": "per sequence (zigzag)", "document": "per document"}


@dataclass(frozen=True, kw_only=True)
class Style:
    """How to show it."""

    is_colored: bool = False
    max_chars: int | None = 2000
    """Of a sample; None is all of it."""
    is_by_token: bool = False
    width: int = 80

    def paint(self, text: str, color: str | None = None, **style: bool) -> str:
        """`text`, colored where colors are wanted."""
        return click.style(text, fg=color, **style) if self.is_colored and text else text

    def mask(self, text: str, is_trained: bool) -> str:
        """`text` as masked or trained."""
        return self.paint(text, "green") if is_trained else self.paint(text, dim=True)


def view_lines(view: View, decode: Decode, style: Style) -> Iterator[str]:
    """All lines of one view."""
    yield style.paint(_title(view), bold=True)
    yield ""
    for name, value in _facts(view):
        yield f"  {name:<16}{value}"
    if view.step_places:
        yield ""
        yield from _step_lines(view)
    if style.is_colored and view.samples:
        yield ""
        yield f"  {style.mask('masked: no loss', False)}   {style.mask('trained: carries a loss', True)}"
    for sample in view.samples:
        yield ""
        yield from _sample_lines(sample, decode, style)


def _title(view: View) -> str:
    place = view.place
    pack = "filler" if view.pack is None else f"pack {view.pack.pack_id} of {one_line(view.pack.group)}"
    if place is None:
        return f"{pack}: not used in epoch {view.epoch}"
    return f"epoch {place.epoch}, step {place.row.step}, iteration {place.row.iteration}, rank {place.rank}: {pack}"


def _facts(view: View) -> Iterator[tuple[str, str]]:
    place, pack = view.place, view.pack
    if pack is None:
        assert place
        yield "tokens", "a few of padding without a loss: the rank has no pack in this iteration"
    else:
        yield "samples", f"{pack.num_samples:,}"
        yield "tokens", f"{pack.num_tokens:,} of {pack.capacity:,} (capacity)"
        share = pack.num_loss_tokens / pack.num_tokens
        whole = f"; the whole step has {place.row.global_num_loss_tokens:,}" if place else ""
        yield "loss tokens", f"{pack.num_loss_tokens:,} ({share:.1%} of the tokens){whole}"
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
    if place.row.window:
        yield "window", f"{place.row.window:,} tokens: the most of a sample that attention sees at once in this step"


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
    if view.pack is None:
        return text
    begin, end = view.rank_tokens
    end = min(end, view.pack.num_tokens)
    if begin >= end:
        return f"{text}; with Ulysses, rank {place.rank} has only padding"
    held = [s.index for s in view.pack.samples if s.begin < end and s.begin + len(s.input_ids) > begin]
    samples = f"sample {held[0]}" if len(held) == 1 else f"samples {held[0]} to {held[-1]}"
    return f"{text}; with Ulysses, rank {place.rank} has tokens [{begin}, {end}), {samples}"


def _step_lines(view: View) -> Iterator[str]:
    assert view.place
    rows = [
        (
            f"{place.row.iteration}",
            "filler" if place.pack is None else f"{place.pack}",
            one_line(place.group),
            _how_to_show(place, view.place),
        )
        for place in view.step_places
    ]
    header = ("iteration", "pack", "group", "")
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    iterations = {place.row.iteration for place in view.step_places}
    where = f"step {view.place.row.step}" if len(iterations) > 1 else f"iteration {view.place.row.iteration}"
    if len(iterations) == len(rows):
        yield f"  {where} has {counted(len(rows), 'iteration')}:"
    else:  # Other ranks have other numbers of them.
        yield f"  rank {view.place.rank} runs {len(rows):,} micro-batches in {where}:"
    for row in (header, *rows):
        cells = (f"{row[0]:>{widths[0]}}", f"{row[1]:>{widths[1]}}", f"{row[2]:<{widths[2]}}", row[3])
        yield f"    {'  '.join(cells)}".rstrip()


def _how_to_show(place: Place, shown: Place) -> str:
    if place == shown:
        return "shown below"
    if place.row.iteration != shown.row.iteration:
        return f"--iteration {place.row.iteration}"
    return f"--pack {place.pack}"


def _sample_lines(sample: SampleRecord, decode: Decode, style: Style) -> Iterator[str]:
    begin = f"-- sample {sample.index} "
    yield style.paint(begin + "-" * max(2, style.width - len(begin)), "cyan")
    yield "   " + _about(sample)
    head, tail = shorten(decode, sample.input_ids, style.max_chars)
    for part in (slice(0, head), slice(tail, None)):
        if part.start and head < tail:
            left_out = sample.loss_mask[head:tail]
            num_trained = np.count_nonzero(left_out)
            text = f"{counted(tail - head, 'token')} left out, {num_trained:,} of them trained; --full shows them"
            yield style.paint(f"{'...':<{_WIDTH}} ~ {text}", "yellow")
        ids, mask = sample.input_ids[part], sample.loss_mask[part]
        if not len(ids):
            continue
        if style.is_by_token:
            yield from _token_lines(decode_tokens(decode, ids, mask), part.start or 0, style)
        elif style.is_colored:
            yield from _colored_lines(decode_runs(decode, ids, mask), style)
        else:
            yield from _plain_lines(decode_runs(decode, ids, mask))


def _about(sample: SampleRecord) -> str:
    place = sample.source if sample.file is None else f"{sample.file}:{sample.line}"
    length = len(sample.input_ids)
    piece = f", a piece of its sample, from token {sample.start:,} on" if sample.start else ""
    return (
        f"id {sample.sample_id}, {one_line(place)}, {counted(length, 'token')} "
        f"[{sample.begin}, {sample.begin + length}), {sample.num_loss_tokens:,} trained{piece}"
    )


def _label(run: Run) -> str:
    """The name of a run's mask: of trained tokens with another weight than 1 the weight."""
    if run.weight in (0, 1):
        return _TRAINED if run.is_trained else _MASKED
    return f"x {run.weight:.3g}"


def _plain_lines(runs: list[Run]) -> Iterator[str]:
    for run in runs:
        for number, line in enumerate(make_safe(run.text).split("\n")):
            yield f"{'' if number else _label(run):<{_WIDTH}} | {line}"


def _colored_lines(runs: list[Run], style: Style) -> Iterator[str]:
    """A newline beside another mask is shown, since nobody could see its color."""
    bar = style.paint("| ", "cyan")
    line = bar
    for run in runs:
        text = make_safe(run.text)
        pieces = text.split("\n")
        if run.weight not in (0, 1):
            line += style.paint(f"[{_label(run)}]", "cyan")
        for number, piece in enumerate(pieces):
            if number:
                is_border = (number == 1 and not pieces[0]) or (number + 1 == len(pieces) and not piece)
                yield line + (style.mask("\u21b5", run.is_trained) if is_border else "")
                line = bar
            line += style.mask(piece, run.is_trained)
    yield line


def _token_lines(runs: list[Run], first: int, style: Style) -> Iterator[str]:
    """One line for each token: its mask, place in the sample, id and text."""
    for run in runs:
        ids = "+".join(map(str, run.input_ids))
        label = style.mask(f"{_label(run):<{_WIDTH}}", run.is_trained)
        yield f"{label} | {first:>7} {ids:>7}  {style.mask(_quoted(run.text), run.is_trained)}"
        first += len(run.input_ids)


def _quoted(text: str) -> str:
    r"""In quotes, so that spaces show; newlines as `\n`."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\t", "\\t")
    return f'"{make_safe(escaped)}"'


_KEPT = "\n\t\u200c\u200d"
"""Newlines and tabs; what joins and parts letters is needed to write some languages, and emoji."""


class _Table(dict[int, str]):
    """Code point -> what is shown; looked up once each."""

    def __missing__(self, code: int) -> str:
        char = chr(code)
        if char in _KEPT or unicodedata.category(char) not in ("Cc", "Cf", "Cs", "Co", "Zl", "Zp"):
            shown = char
        elif code < 0x20:
            shown = chr(0x2400 + code)
        else:
            shown = "\u2421" if code == 0x7F else f"<U+{code:04X}>"
        self[code] = shown
        return shown


_TABLE = _Table()


def make_safe(text: str) -> str:
    r"""`text` without anything that a terminal obeys but newlines and tabs.

    Control characters become their pictures (ESC is `␛`); others, and those that turn the direction of writing, their
    code points.

    >>> make_safe("a\x1b[31m\u202eb\nc")
    'a␛[31m<U+202E>b\nc'
    """
    return text.translate(_TABLE)


def one_line(text: str) -> str:
    r"""As `make_safe`, with newlines and tabs as pictures too.

    >>> one_line("a\n\tb")
    'a␊␉b'
    """
    return re.sub("[\n\t]", lambda found: chr(0x2400 + ord(found.group())), make_safe(text))
