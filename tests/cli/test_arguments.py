"""Arguments that look right and are not: the message says what, and nothing is done."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest

from tests.cli.conftest import GROUPS

EMPTY = (
    "invalid value for '--output' / '-o': it is empty; name a folder, or '.' for the current one; see hbpack {} --help"
)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["simulate", "x", "--step-seconds", "nan"], "--step-seconds must be a finite number, got 'nan'"),
        (["simulate", "x", "--step-seconds", "1e9"], "--step-seconds must be at most 86400, got '1e9'"),
        (["simulate", "x", "--step-seconds", "x"], "--step-seconds must be a number, got 'x'"),
        (["pack", "x", "--tokenizer", "t", *GROUPS, "-o", ""], EMPTY.format("pack")),
        (["tokenize", "x", "--tokenizer", "t", "--output="], EMPTY.format("tokenize")),
        (["plan", "x", *GROUPS, "-o", ""], EMPTY.format("plan")),
        (["export", "x", "--to", "nemo", "-o", ""], EMPTY.format("export")),
        (["plan", "file", *GROUPS], "'file/tokens' holds no token store (no tokens.json); run hbpack tokenize"),
        (["plan", "folder", *GROUPS], "'folder/tokens' holds no token store (no tokens.json); run hbpack tokenize"),
        (["write", "file"], "'file' holds no plan (no plan.arrow); run hbpack plan"),
        (
            ["stats", "lengths.npz", *GROUPS],
            (
                "lengths file 'lengths.npz' is an archive of arrays (.npz); save one array with numpy.save, or name "
                "text with one integer a line"
            ),
        ),
    ],
)
def test_usage(hbpack, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("text")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "other").touch()
    np.savez("lengths.npz", lengths=np.arange(1, 4))
    before = sorted(tmp_path.rglob("*"))
    assert hbpack(*arguments) == (2, "", f"error: {message}\n")
    assert sorted(tmp_path.rglob("*")) == before


def test_lengths_with_a_byte_order_mark(hbpack, tmp_path):
    path = tmp_path / "lengths.txt"
    path.write_bytes(b"\xef\xbb\xbf12\r\n\r\n13\r\n")
    assert json.loads(hbpack("stats", path, "--json").stdout)["lengths"]["num_tokens"] == 25


@pytest.fixture(scope="module")
def long_lengths(tmp_path_factory):
    """Three of eight samples are longer than 8K."""
    path = tmp_path_factory.mktemp("long") / "lengths.txt"
    path.write_text("100 9000 300 10000 500 20000 700 8192")
    return path


@pytest.mark.usefixtures("rows_of_this_process")
@pytest.mark.parametrize(
    ("overflow", "counts", "note"),
    [
        ("split", {"split": 3, "truncated": 0, "dropped": 0, "pieces": 12, "tokens": 48_792}, None),
        (
            "truncate",
            {"split": 0, "truncated": 3, "dropped": 0, "pieces": 8, "tokens": 34_368},
            "cut off there; 34,368",
        ),
        ("drop", {"split": 0, "truncated": 0, "dropped": 3, "pieces": 5, "tokens": 9_792}, "left out; 9,792"),
    ],
)
def test_what_becomes_of_long_samples_is_said(hbpack, long_lengths, overflow, counts, note):
    options = (*GROUPS, "--overflow", overflow)
    stats = json.loads(hbpack("stats", long_lengths, *options, "--json").stdout)
    assert stats["counts"] == {"samples": 8, "left_out_by_weight": 0, "repeated_by_weight": 0, **counts}
    table = hbpack("stats", long_lengths, *options).stdout
    assert re.search(rf"^  tokens +{counts['tokens']:,}$", table, re.MULTILINE)
    rows = (*options, "--algorithms", "bfd")
    assert json.loads(hbpack("compare", long_lengths, *rows, "--json").stdout)["counts"] == stats["counts"]
    compared = hbpack("compare", long_lengths, *rows).stdout
    said = f"  --overflow {overflow}: 3 samples are longer than 8,192 tokens and {note} tokens are planned\n"
    assert (said in compared) == (note is not None)
    assert ("--overflow" in compared) == (note is not None)
