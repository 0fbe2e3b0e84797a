"""Integers beyond 64 bits are read as Python writes them, wherever JSON is parsed."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from packer_cli.corpus.records.base import has_long_number, read_json

from .helpers import CHAT, parse, read_all, reason

NUMBERS = [2**63, 2**64 - 1, 2**64, -(2**63), -(2**63) - 1, 10**24 + 7, -(10**40) - 3, int("9" * 308)]


def record(number):
    """A conversation with a call that has the number as an argument."""
    call = {"type": "function", "function": {"name": "f", "arguments": {"id": number, "part": 0.5}}}
    turns = [{"role": "user", "content": "Go."}, {"role": "assistant", "content": "", "tool_calls": [call]}]
    return {"messages": turns, "tools": [{"name": "f", "enum": [number]}]}


def numbers_of(document):
    arguments = document.messages[1]["tool_calls"][0]["function"]["arguments"]
    assert arguments["part"] == 0.5
    assert document.tools == [{"name": "f", "enum": [arguments["id"]]}]
    return arguments["id"]


@pytest.mark.parametrize("batch_bytes", [100, 1 << 20])
@pytest.mark.parametrize("form", ["jsonl", "json"])
def test_files(tmp_path, form, batch_bytes):
    """At every place in the words of eight bytes that are looked at, and whichever the numbers beside them."""
    records = [{**record(number), "id": "x" * shift} for number in NUMBERS for shift in range(9)]
    texts = [json.dumps(each) for each in records]
    path = tmp_path / f"a.{form}"
    path.write_text("".join(f"{text}\n" for text in texts) if form == "jsonl" else f"[{','.join(texts)}]")
    documents, rejects = read_all(path, batch_bytes=batch_bytes)
    assert not rejects
    found = [numbers_of(document) for document in documents]
    assert found == [number for number in NUMBERS for _ in range(9)]
    assert {type(number) for number in found} == {int}


def test_texts_of_tools_and_calls():
    value = json.dumps({"name": "f", "arguments": {"id": 10**30}})
    turns = [{"from": "human", "value": "Go."}, {"from": "function_call", "value": value}]
    document = parse({"conversations": turns, "tools": f'[{{"name": "f", "default": {-(10**20)}}}]'})
    assert document.messages[1]["tool_calls"][0]["function"]["arguments"] == {"id": 10**30}
    assert document.tools == [{"name": "f", "default": -(10**20)}]


def test_what_is_refused_beside_long_numbers(tmp_path):
    good = json.dumps({"text": "a", "id": 10**25})
    lines = [
        f'{{"text": NaN, "id": {10**25}}}',
        f'{{"text": "a", "id": {10**25},}}',
        f'{{"text": "a", "id": {10**25}, "b": {"[" * 1010}{"]" * 1010}}}',
    ]
    (tmp_path / "a.jsonl").write_text("\n".join([*lines, good]))
    documents, rejects = read_all(tmp_path / "a.jsonl")
    assert [document.line for document in documents] == [4]
    assert [each.reason for each in rejects] == [
        "broken JSON: NaN at column 10 is not a JSON value",
        rejects[1].reason,
        "it has an integer beyond 64 bits, and nests too deeply",
    ]
    assert rejects[1].reason.startswith("broken JSON: ")
    assert "is a string that is not JSON" in reason({**CHAT, "tools": f"[{'9' * 5000}]"})


@given(st.binary(max_size=40), st.integers(20, 45), st.booleans(), st.binary(max_size=40))
def test_long_numbers_are_found_anywhere(before, digits, is_negative, after):
    number = b"-" + b"7" * (digits - 1) if is_negative else b"7" * digits
    assert has_long_number(before + number + after)


@given(st.text("01=:;<=>? -.,x", max_size=200))
def test_other_texts_have_none(text):
    import re

    assert has_long_number(text.encode()) <= (re.search(r"\d{20}|-\d{19}", text) is not None)


def test_numbers_are_as_python_reads_them():
    text = '{"a": [-0, 12345678901234567890.5, 123456789012345678901234e-2], "a": 100000000000000000000}'
    assert read_json(text) == json.loads(text) == {"a": 10**20}
