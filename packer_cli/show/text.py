"""Texts of tokens in lines for people, and the way to make any text safe for a terminal.

With colors, the text stands as it is, masked tokens dim and trained ones green. Without, each run of equal mask begins
a line with its name, and a line without a name goes on after a newline of the text: nothing in the text can look so.
Where lines are wrapped, one that begins with `:` in place of `|` goes on with the line above.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray

from packer_cli.show.decode import Decode, Run, decode_runs, shorten
from packer_cli.sizes import counted

_MASKED, _TRAINED = "masked", "trained"
WIDTH = len(_TRAINED)
"""Width of the names of masks."""
_LEAST_WIDTH = 20
"""Columns that text has, however deep it is in a tree."""


@dataclass(frozen=True, kw_only=True)
class Style:
    """The choices of how tokens are shown."""

    is_colored: bool = False
    max_chars: int | None = 2000
    """Most characters of a sample; None is all of it."""
    is_by_token: bool = False
    width: int = 80

    def paint(self, text: str, color: str | None = None, **style: bool) -> str:
        """Color `text` where colors are wanted."""
        return click.style(text, fg=color, **style) if self.is_colored and text else text

    def mask(self, text: str, is_trained: bool) -> str:
        """Color `text` as masked or trained."""
        return self.paint(text, "green") if is_trained else self.paint(text, dim=True)


def _label(run: Run) -> str:
    """Name a run's mask; return the weight of trained tokens with another weight than 1."""
    if run.weight in (None, 0, 1):
        return _TRAINED if run.trained else _MASKED
    return f"x {run.weight:.3g}"


def text_lines(
    decode: Decode,
    ids: NDArray[Any],
    mask: NDArray[Any],
    style: Style,
    *,
    before: Sequence[int] = (),
    first: int = 0,
    wrap: int | None = None,
) -> Iterator[str]:
    """Yield the lines of tokens' text, shortened in the middle.

    Args:
        ids, mask: [t]: the tokens, and the weight of the loss of each.
        before: the last tokens before them, which may begin a character that they end.
        first: place of the first one in its sample.
        wrap: width of the lines; None: they are not wrapped.
    """
    head, tail = shorten(decode, ids, style.max_chars)
    for part in (slice(0, head), slice(tail, None)):
        start = part.start or 0
        if start and head < tail:
            num_trained = np.count_nonzero(mask[head:tail])
            text = f"{counted(tail - head, 'token')} left out, {num_trained:,} of them trained; --full shows them"
            yield style.paint(f"{'...':<{WIDTH}} ~ {text}", "yellow")
        if not len(ids[part]):
            continue
        own_before = () if start else before
        runs = decode_runs(decode, ids[part], mask[part], own_before, is_by_token=style.is_by_token)
        if style.is_by_token:
            yield from _token_lines(runs, first + start, style)
        elif style.is_colored:
            yield from _colored_lines(runs, style, wrap)
        else:
            yield from _plain_lines(runs, wrap)


def _plain_lines(runs: list[Run], wrap: int | None) -> Iterator[str]:
    width = None if wrap is None else max(_LEAST_WIDTH, wrap - WIDTH - 3)
    for run in runs:
        label = _label(run)
        for line in make_safe(run.text or "").split("\n"):
            for number, piece in enumerate(_pieces(line, width, width)):
                yield f"{label:<{WIDTH}} {':' if number else '|'} {piece}"
                label = ""


def _colored_lines(runs: list[Run], style: Style, wrap: int | None) -> Iterator[str]:
    """Color each run, and show a newline beside another mask, since nobody could see its color."""
    width = None if wrap is None else max(_LEAST_WIDTH, wrap - 3)
    line, room = style.paint("| ", "cyan"), width
    for run in runs:
        text = make_safe(run.text or "")
        lines = text.split("\n")
        if run.weight not in (None, 0, 1):
            line += style.paint(f"[{_label(run)}]", "cyan")
        for number, of_line in enumerate(lines):
            if number:
                is_border = (number == 1 and not lines[0]) or (number + 1 == len(lines) and not of_line)
                yield line + (style.mask("\u21b5", run.trained) if is_border else "")
                line, room = style.paint("| ", "cyan"), width
            first, *others = _pieces(of_line, room, width)
            line += style.mask(first, run.trained)
            room = None if room is None else room - _columns(first)
            for piece in others:
                yield line
                line = style.paint(": ", "cyan") + style.mask(piece, run.trained)
                room = None if width is None else width - _columns(piece)
    yield line


def _columns(text: str) -> int:
    """Count the columns of a terminal that a text takes, nearly: some emoji are made of several characters."""
    wide = sum(unicodedata.east_asian_width(char) in "WF" for char in text)
    return len(text) + wide - sum(unicodedata.category(char) in ("Mn", "Me", "Cf") for char in text)


def _pieces(line: str, room: int | None, width: int | None) -> list[str]:
    """Cut a line to columns of a terminal: the first piece takes `room` of them, each other one `width`."""
    if room is None or width is None:
        return [line]
    line = line.expandtabs(4)
    pieces, begin, left = [], 0, room
    for place, char in enumerate(line):
        size = _columns(char)
        if size > left:
            pieces.append(line[begin:place])
            begin, left = place, width
        left -= size
    return [*pieces, line[begin:]]


def _token_lines(runs: list[Run], first: int, style: Style) -> Iterator[str]:
    """Yield one line for each token: its mask, place in the sample, id and text."""
    for run in runs:
        ids = "+".join(map(str, run.input_ids))
        label = style.mask(f"{_label(run):<{WIDTH}}", run.trained)
        yield f"{label} | {first:>7} {ids:>7}  {style.mask(_quoted(run.text or ''), run.trained)}"
        first += len(run.input_ids)


def _quoted(text: str) -> str:
    r"""Quote a text, so that spaces show; write newlines as `\n`."""
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
    r"""Replace everything in `text` that a terminal obeys, except newlines and tabs.

    Control characters become their pictures (ESC is `␛`); others, and those that turn the direction of writing, their
    code points.

    >>> make_safe("a\x1b[31m\u202eb\nc")
    'a␛[31m<U+202E>b\nc'
    """
    return text.translate(_TABLE)


def one_line(text: str) -> str:
    r"""Replace as `make_safe` does, and newlines and tabs by pictures too.

    >>> one_line("a\n\tb")
    'a␊␉b'
    """
    return re.sub("[\n\t]", lambda found: chr(0x2400 + ord(found.group())), make_safe(text))
