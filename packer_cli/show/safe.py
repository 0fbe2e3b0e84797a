"""Text out of data, made harmless for a terminal: whatever it would obey is shown instead."""

from __future__ import annotations

import re
import unicodedata

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
