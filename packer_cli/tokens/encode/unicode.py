"""Texts on which two tokenizer libraries with different Unicode tables agree.

Normalizers and the classes of a pre-tokenizer's regex (letter, number, space) come from each library's own Unicode
tables. They agree on the code points of Unicode 13.0 (2020), except for marks added after 9.0, which the normalizers
of `tokenizers` neither reorder nor compose. On these, and on newer or unassigned code points, ids may differ. Python's
own table is not used, since it depends on Python's version.
"""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

_FIRST_UNASSIGNED = 0x378


@lru_cache(maxsize=1)
def _tables() -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Mark code points that Unicode 13.0 did not assign; and these with the marks added after 9.0, bool[0x110000].

    1.1 MB each, created once, of `unicode.txt`.
    """
    text = Path(__file__).with_suffix(".txt").read_text(encoding="ascii")
    words, marks = (part.split() for part in re.sub("#.*", "", text).split("\n\n\n"))
    borders = np.cumsum([int(word, 36) for word in words])
    steps = np.zeros(0x110000, dtype=np.int8)
    steps[borders[0::2]] = 1
    steps[borders[1::2]] = -1
    unassigned: NDArray[np.bool_] = np.cumsum(steps, dtype=np.int8) == 0
    unsettled = unassigned.copy()
    for run in marks:
        first, _, last = run.partition("-")
        unsettled[int(first, 16) : int(last or first, 16) + 1] = True
    return unassigned, unsettled


def is_settled(text: str) -> bool:
    """Whether the libraries agree on each code point of the text.

    Price: nothing for ASCII, 0.5 ns a char of Latin text, 2 ns a char for the rest.

    Raises: UnicodeEncodeError (a lone surrogate).
    """
    if text.isascii():
        return True
    codes = np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32)
    if codes.max() < _FIRST_UNASSIGNED:
        return True
    return not _tables()[1][codes[codes >= _FIRST_UNASSIGNED]].any()
