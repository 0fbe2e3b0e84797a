"""What the fast ways rest on: the Unicode table and the byte lengths of ids."""

import sys
import unicodedata

import numpy as np
import pytest

from packer_cli.tokens.encode.backends import GigatokenBackend, ReferenceBackend
from packer_cli.tokens.encode.unicode import _tables, is_settled


@pytest.mark.parametrize(
    ("text", "settled"),
    [
        ("plain ASCII \x00\x7f", True),
        ("naïve 你好 🙂 \u08c7 \U0001fbf9", True),  # the last two came with 13.0
        ("\ue000\U000f0000\U0010fffd", True),  # private use
        ("x \u0870", False),  # 14.0
        ("\U0001fae8", False),  # 15.0
        ("\u088f<I", False),
        ("\U00032f2f", False),
    ],
)
def test_what_unicode_13_assigned(text, settled):
    assert is_settled(text) is settled


def test_normalizers_agree_on_all_settled_marks():
    from tokenizers import normalizers

    normalizer = normalizers.NFC()
    for code in range(0x300, 0x110000):
        mark = chr(code)
        if not 0xD800 <= code < 0xE000 and unicodedata.combining(mark) and is_settled(mark):
            for text in (f"a{mark}\u0334", f"a\u0345{mark}"):
                assert normalizer.normalize_str(text) == unicodedata.normalize("NFC", text), hex(code)


def test_the_table_knows_all_that_this_python_knows_to_be_unassigned():
    table, _ = _tables()
    assert len(table) == 0x110000
    for code in range(0x110000):
        if unicodedata.category(chr(code)) == "Cn" and code & 0xFFFE != 0xFFFE and not 0xFDD0 <= code <= 0xFDEF:
            assert table[code], hex(code)
    if sys.version_info[:2] == (3, 11):  # Unicode 14.0 added 838 characters
        assigned = sum(unicodedata.category(chr(code)) not in ("Cn", "Cs") for code in np.flatnonzero(table).tolist())
        assert assigned == 838


def test_unsettled_texts_go_to_the_reference_in_their_place(load, monkeypatch):
    loaded = load("bytes")
    reference = ReferenceBackend(loaded)
    backend = GigatokenBackend(loaded, reference)
    texts = ["plain", "\u088f<I", "", "é", "\U0001fae8 x", "end"]
    expected = reference.encode(texts)
    seen = []
    honest = reference.encode
    monkeypatch.setattr(reference, "encode", lambda some: seen.extend(some) or honest(some))
    ids = backend.encode(texts)
    assert seen == [texts[1], texts[4]]
    assert ids.offsets.tolist() == expected.offsets.tolist()
    assert ids.values.tolist() == expected.values.tolist()
    assert backend.encode([]).offsets.tolist() == [0]
