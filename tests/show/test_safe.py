"""Nothing in data commands a terminal."""

from __future__ import annotations

import unicodedata

from hypothesis import given
from hypothesis import strategies as st

from packer_cli.show.text import make_safe, one_line


@given(st.text(st.characters() | st.sampled_from("\x00\x07\x08\r\x1b\x7f\x85\x9b\u2028\u2066\u202e\ufeff\ud800")))
def test_what_a_terminal_obeys_is_shown(text):
    safe = make_safe(text)
    assert not {char for char in safe if unicodedata.category(char) in ("Cc", "Cs", "Cf")} - set("\n\t\u200c\u200d")
    assert not set(safe) & set("\u2028\u2029")
    assert safe.count("\n") == text.count("\n")
    assert not set(one_line(text)) & set("\n\t")
    safe.encode()  # Surrogates alone could not be.


@given(st.text(st.sampled_from("aé中😀\u0301 \n\t[red]<|end|>\\🇩👩\u200d")))
def test_other_text_stays(text):
    assert make_safe(text) == text


def test_by_name():
    assert make_safe("\x1b]0;title\x07\r\x7f\x9b31m") == "␛]0;title␇␍␡<U+009B>31m"
