"""JSON arrays read like json.load; what is broken in them loses only itself."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from .helpers import read_all
from .naive import array_borders

NESTED = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=5) | st.just(']},{["\\'),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=100, deadline=None)
@given(
    values=st.lists(st.fixed_dictionaries({"text": st.text("abc", min_size=1)}, optional={"x": NESTED}) | NESTED),
    indent=st.sampled_from([None, 0, 2]),
    ascii_only=st.booleans(),
    batch_bytes=st.integers(1, 400),
)
def test_json_arrays_read_like_json_load(
    tmp_path_factory: pytest.TempPathFactory, values: list, indent: int | None, ascii_only: bool, batch_bytes: int
) -> None:
    path = tmp_path_factory.mktemp("json") / "a.json"
    path.write_text(json.dumps(values, indent=indent, ensure_ascii=ascii_only), "utf-8")
    documents, rejects = read_all(path, batch_bytes=batch_bytes)
    kept = [
        (number, value["text"])
        for number, value in enumerate(values, 1)
        if isinstance(value, dict) and isinstance(value.get("text"), str) and value["text"].strip()
    ]
    assert [(d.line, d.text) for d in documents] == kept
    assert len(documents) + len(rejects) == len(values)


@pytest.mark.parametrize(
    ("text", "lines", "lost"),
    [
        (b'[{"text": "a"}, {"text": "b"', [1], [(2, "broken JSON: the file ends inside this element")]),
        (b'[{"text": "a"}, {"text": "b', [1], [(2, "broken JSON: the file ends inside this element")]),
        (b'[{"text": "a"}, ]', [1], [(2, "broken JSON: a comma before the closing ]")]),
        (b'[{"text": "a"},', [1], [(2, "broken JSON: the file ends before the array does")]),
        (b'[{"text": "a"}', [1], [(2, "broken JSON: the file ends before the array does")]),
        (b'[{"text": "a"}] x', [1], [(2, "broken JSON: there is more text after the array")]),
        (b'[{"text": "a"}}, {"text": "b"}]', [1], [(2, "broken JSON: the array is closed by }")]),
        (b"[" * 20_000, [], [(1, "broken JSON: the file ends inside this element")]),
        (
            b"[" + b"[" * 20_000 + b"]" * 20_000 + b', {"text": "b"}]',
            [2],
            [(1, "broken JSON: depth limit exceeded at column 1026")],
        ),
        # Whatever is wrong between its brackets, an element loses itself alone.
        (
            b'[{"text" 1}, {"text": "b"}]',
            [2],
            [(1, "broken JSON: unexpected character, expected ':' after key at column 9")],
        ),
        (b'[nul, {"text": "b"}]', [2], [(1, "broken JSON: unexpected end of data at column 4")]),
        (
            b'[{"text": "a"], , {"text": "b"}]',
            [3],
            [
                (1, "broken JSON: unexpected character, expected ',' or '}' at column 13"),
                (2, "broken JSON: there is nothing between two commas"),
            ],
        ),
        (
            b'[{"text": "a"} {"text": "b"}, {"text": "c"}]',
            [2],
            [(1, "broken JSON: unexpected content after document at column 15")],
        ),
    ],
)
@pytest.mark.parametrize("batch_bytes", [7, 1 << 20])
def test_broken_arrays(
    tmp_path: Path, text: bytes, lines: list[int], lost: list[tuple[int, str]], batch_bytes: int
) -> None:
    for name, data in (("a.json", text), ("b.json.gz", gzip.compress(text))):
        path = tmp_path / name
        path.write_bytes(data)
        documents, rejects = read_all(path, batch_bytes=batch_bytes)
        assert [document.line for document in documents] == lines
        assert rejects == lost


@given(values=st.lists(NESTED, max_size=12), indent=st.sampled_from([None, 1]), size=st.integers(1, 40))
def test_borders_of_elements_are_where_a_parser_sees_them(values: list, indent: int | None, size: int) -> None:

    from packer_cli.corpus.readers.json_borders import find_borders

    text = json.dumps(values, indent=indent, ensure_ascii=False).encode()
    state, buffer, found = np.zeros(3, dtype=np.int64), np.empty(size, dtype=np.int64), []
    for begin in range(0, len(text), size):
        count = find_borders(np.frombuffer(text[begin : begin + size], dtype=np.uint8), state, buffer)
        found += (begin + buffer[:count]).tolist()
    assert found == array_borders(text)


def test_bad_elements_lose_only_themselves(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(b'\xef\xbb\xbf [{"text": "a"}, {"text": NaN}, {"text": "b\xff"}, "\\ud800", 3, {"text": "c"}]\n')
    documents, rejects = read_all(path)
    assert [(d.line, d.text) for d in documents] == [(1, "a"), (6, "c")]
    assert [r.line for r in rejects] == [2, 3, 4, 5]
    assert rejects[1].reason == "invalid UTF-8: byte 0xff at offset 11 of the element"


def test_truncated_gz_array(tmp_path: Path) -> None:
    path = tmp_path / "a.json.gz"
    array = json.dumps([{"text": str(i * i * 7919)} for i in range(30_000)])
    path.write_bytes(gzip.compress(array.encode())[:-20_000])
    documents, rejects = read_all(path)
    assert len(documents) > 1000
    number = len(documents) + 1
    assert rejects == [
        (number, f"compressed data ends early; the rest of the array from element {number} cannot be read")
    ]


def test_control_characters_between_elements(tmp_path: Path) -> None:
    """Python takes some of them for white space, JSON does not."""
    path = tmp_path / "a.json"
    path.write_bytes(b'[{"text": "a"}, \x0c{"text": "b"}, {"text": "c"}\x0b]')
    documents, rejects = read_all(path)
    assert [document.text for document in documents] == ["a"]
    assert [(reject.line, reject.reason[:12]) for reject in rejects] == [(2, "broken JSON:"), (3, "broken JSON:")]


def test_an_array_cut_off_where_a_slice_would_begin(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(b'[{"text": "a"}, {"text": "b"},')
    documents, rejects = read_all(path, slice_bytes=20)
    assert len(documents) == 2
    assert [(reject.line, reject.reason) for reject in rejects] == [
        (3, "broken JSON: the file ends before the array does")
    ]
