"""`--keep-columns`: columns of the records stay beside the samples, and `find --id` looks in the first of them."""

from __future__ import annotations

import json
import uuid

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from packer_cli import find
from packer_cli.errors import InputError
from packer_cli.remote.path import RemotePath
from packer_cli.tokens.store import open_store
from tests.reference import tree
from tests.remote.conftest import upload

CHAT = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello there."}]


@pytest.fixture
def corpus(lines_of, tmp_path):
    """Chats, texts of a table, and tokens of another."""
    records = [
        {"messages": CHAT, "id": "a", "license": "mit"},
        {"messages": CHAT, "id": 7, "license": None},
        {"messages": CHAT, "license": True, "id": "Zoë"},
        {"messages": CHAT, "id": ["b"]},
        {"messages": CHAT},
        {"messages": CHAT, "id": "a", "other": {}},
    ]
    chats = lines_of(*records, name="chats.jsonl")
    pq.write_table(pa.table({"text": ["a text"] * 3, "id": ["x", "y", None], "n": [1, 2, 3]}), tmp_path / "t.parquet")
    pq.write_table(pa.table({"input_ids": [[1, 2, 3]] * 2, "id": [10**12, 5]}), tmp_path / "ids.parquet")
    return [chats, tmp_path / "t.parquet", tmp_path / "ids.parquet"]


def kept(folder):
    """The rows of all parts, without the names that columns of records have there."""
    parts = [pa.ipc.open_file(folder / part.path).read_all() for part in open_store(folder).index.parts]
    rows = [row for part in parts for row in part.select(["record.id", "record.license"]).to_pylist()]
    return [tuple(row.values()) for row in rows]


def test_they_are_kept_as_text(pack, hbpack, corpus, tmp_path):
    done = pack(*corpus, "--keep-columns", "id,license", "--groups", "64", "--gpus", 1)
    assert done.code == 0, done.stderr
    out = tmp_path / "out"
    assert kept(out / "tokens") == [
        ("a", "mit"), ("7", None), ("Zoë", "true"), (None, None), ("a", None),
        ("x", None), ("y", None), (None, None), ("1000000000000", None), ("5", None),
    ]  # fmt: skip
    (rejected,) = map(json.loads, (out / "rejected.jsonl").read_text().splitlines())
    assert (rejected["line"], rejected["reason"]) == (
        4,
        '"id" is an array, and --keep-columns keeps no lists and objects',
    )
    assert hbpack("verify", out).code == 0
    before = tree(out)
    pack(
        *corpus, "--keep-columns", "id,license", "--groups", "64", "--gpus", 1, "--workers", 2, output=tmp_path / "two"
    )
    assert tree(tmp_path / "two") == before

    places = find(out, ids=["a", "y", "1000000000000"]).places
    assert [(place.file.rpartition("/")[2], place.line) for place in places] == [
        ("chats.jsonl", 1), ("chats.jsonl", 6), ("t.parquet", 2), ("ids.parquet", 1),
    ]  # fmt: skip
    assert find(out, f"{corpus[0]}:2", ids="5").places == find(out, [f"{corpus[0]}:2", f"{corpus[2]}:2"]).places
    printed = hbpack("find", out, "--id", "a", "--id", "y", "--json").stdout
    assert [place["line"] for place in json.loads(printed)["places"]] == [1, 6, 2]
    with pytest.raises(InputError, match="no sample has the id 'b'; it may have been rejected"):
        find(out, ids="b")


def test_show_prints_them(pack, hbpack, corpus, tmp_path):
    pack(*corpus, "--keep-columns", "id,license", "--groups", "64", "--gpus", 1)
    shown = {0: {"id": "a", "license": "mit"}, 1: {"id": "7", "license": None}, 5: {"id": "x", "license": None}}
    for sample, kept in shown.items():
        done = hbpack("show", tmp_path / "out", "--sample", sample)
        assert f"   id {kept['id']}, license {kept['license'] or '-'}\n" in done.stdout
        (view,) = json.loads(hbpack("show", tmp_path / "out", "--sample", sample, "--json").stdout)
        assert view["samples"][0]["kept"] == kept
    pack(corpus[0], "--groups", "64", "--gpus", 1, output=tmp_path / "plain")
    (view,) = json.loads(hbpack("show", tmp_path / "plain", "--sample", 0, "--json").stdout)
    assert view["samples"][0]["line"] == 1
    assert "kept" not in view["samples"][0]


@pytest.mark.parametrize("shard", [(), ("--shard", "0/2")])
def test_a_column_that_no_record_has_is_said(hbpack, corpus, tokenizer, tmp_path, shard):
    words = ("tokenize", *corpus, "--tokenizer", tokenizer, "--keep-columns", "n,uid", "--output", tmp_path / "out")
    done = hbpack(*words, *shard)
    if shard:
        assert "no record has" not in done.stderr  # Of its share alone, it cannot tell.
        done = hbpack(*words, "--shard", "1/2")
    assert done.code == 0, done.stderr
    assert [line for line in done.stderr.splitlines() if "no record has" in line] == [
        "warning: no record has 'uid', which --keep-columns names; check the name"
    ]


def test_append_keeps_them_too(pack, hbpack, corpus, lines_of, tmp_path):
    pack(corpus[1], "--keep-columns", "n,id", "--groups", "64", "--gpus", 1)
    done = hbpack("append", tmp_path / "out", lines_of({"text": "more", "n": 2.5}), "--workers", 1)
    assert done.code == 0, done.stderr
    assert [place.line for place in find(tmp_path / "out", ids=["2.5", "2"]).places] == [1, 2]


def test_they_change_nothing_else(pack, hbpack, corpus, tmp_path):
    for name, options in (("plain", ()), ("kept", ("--keep-columns", "license"))):
        pack(*corpus[:2], *options, "--groups", "64", "--gpus", 1, output=tmp_path / name)
    plain, others = (open_store(tmp_path / name / "tokens") for name in ("plain", "kept"))
    assert others.lengths().tolist() == plain.lengths().tolist()
    with pytest.raises(InputError, match="have no ids; pack them again, with --keep-columns id"):
        find(tmp_path / "plain", ids="a")
    url = f"memory://{uuid.uuid4().hex}"
    upload(tmp_path / "kept/tokens", RemotePath(url))
    far = open_store(RemotePath(url))
    assert far._ranged is not None
    assert far.lengths().tolist() == plain.lengths().tolist()
    assert far.find_kept(["mit"]) == {"mit": [0]}
