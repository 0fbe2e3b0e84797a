"""White space around ranges of a text."""

from __future__ import annotations


def after_space(text: str, start: int, stop: int) -> int:
    """The first place from `start` on that is not white space; `stop` if there is none."""
    while start < stop and text[start].isspace():
        start += 1
    return start


def before_space(text: str, start: int, stop: int) -> int:
    """The end of the text before `stop` without white space; `start` if there is none."""
    while stop > start and text[stop - 1].isspace():
        stop -= 1
    return stop
