"""What went where: each input's records, tokens and files, and why records were rejected."""

from __future__ import annotations

import json
from collections import Counter

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from packer_cli.tokens import accounts
from packer_cli.tokens.accounts import kind_of, most_frequent
from tests.reference import read_packs

ANSWER = {"role": "assistant", "content": "Hello there."}
CHAT = {"messages": [{"role": "user", "content": "Hi"}, ANSWER]}


@pytest.fixture
def corpus(tmp_path, lines_of):
    """Two folders: one with a file that is skipped, the other with a table that was cut short."""
    for name in ("chats", "texts"):
        (tmp_path / name).mkdir()
    lines_of(*[CHAT] * 60, "bad", "{", {"text": 5}, {"messages": CHAT["messages"][:1]}, name="chats/a.jsonl")
    lines_of(*[CHAT] * 20, name="chats/b.jsonl")
    (tmp_path / "chats/notes.xyz").write_text("no data")
    lines_of(*({"text": f"text {i} " * (i % 40 + 1)} for i in range(300)), name="texts/a.jsonl")
    pq.write_table(pa.table({"text": ["a text"] * 40}), tmp_path / "texts/b.parquet")
    (tmp_path / "texts/b.parquet").write_bytes((tmp_path / "texts/b.parquet").read_bytes()[:-20])
    return [tmp_path / "chats", tmp_path / "texts"]


def found_in(folder, number):
    """Samples, tokens and loss tokens of each input, of what the shards hold."""
    samples, tokens, loss = Counter(), Counter(), Counter()
    for pack in read_packs(folder):
        borders = pack["cu_seqlens"].tolist()
        for source, begin, end in zip(pack["source_ids"].tolist(), borders, borders[1:], strict=False):
            samples[source] += 1
            tokens[source] += end - begin
            loss[source] += int(pack["loss_mask"][begin:end].sum())
    return [(samples[i], tokens[i], loss[i]) for i in range(number)]


@pytest.mark.parametrize("wishes", [("70%", "30%"), ("2.0", "500tokens"), ("1", "1")])
def test_a_mixture_is_confirmed(pack, hbpack, corpus, tmp_path, wishes):
    inputs = [f"{folder}@{wish}" for folder, wish in zip(corpus, wishes, strict=True)]
    done = pack(*inputs, "--groups", "1k", "--gpus", 1, "--json")
    assert done.code == 0, done.stderr
    record = json.loads(done.stdout)
    got = [(each["samples"], each["tokens"], each["loss_tokens"]) for each in record["inputs"]]
    assert got == found_in(tmp_path / "out", 2)
    total = sum(tokens for _, tokens, _ in got)
    assert [each["share"] for each in record["inputs"]] == [tokens / total for _, tokens, _ in got]
    if wishes[0] == "70%":
        assert record["inputs"][0]["share"] == pytest.approx(0.7, abs=0.02)  # Half of the longest sample is 2 %.
    stats = json.loads(hbpack("stats", tmp_path / "out", "--json").stdout)
    assert (stats["inputs"], stats["sources"]) == (record["inputs"], record["sources"])
    assert stats["counts"]["reasons"] == record["counts"]["reasons"]
    shown = {"70%": "70%", "2.0": "2 times", "1": "once"}[wishes[0]]
    text = " ".join(hbpack("stats", tmp_path / "out").stdout.split())
    assert f"{corpus[0]} {shown} {got[0][0]:,} {got[0][1]:,} {got[0][2]:,} {got[0][1] / total:.1%}" in text


def test_what_was_read_of_each_input(pack, hbpack, corpus, tokenizer, tmp_path):
    """The store, the set, and both commands say the same."""
    assert pack(*corpus, "--groups", "1k", "--gpus", 1).code == 0
    manifest = json.loads((tmp_path / "out/hbpack.json").read_text())
    chats, texts = (source["read"] for source in manifest["sources"])
    assert (chats["files"], chats["records"], chats["rejected"], chats["num_damaged"]) == (2, 84, 4, 0)
    assert [each["suffix"] for each in manifest["sources"][0]["skipped"]] == [".xyz"]
    size = (corpus[1] / "b.parquet").stat().st_size
    assert (texts["files"], texts["records"], texts["rejected"]) == (2, 301, 1)
    assert (texts["num_damaged"], texts["lost_bytes"]) == (1, size)
    assert [(each["path"], each["num_bytes"]) for each in texts["damaged"]] == [(f"{corpus[1]}/b.parquet", size)]
    assert [each["num_bytes"] for each in (chats, texts)] == [
        sum(path.stat().st_size for path in folder.iterdir() if path.suffix != ".xyz") for folder in corpus
    ]
    once = found_in(tmp_path / "out", 2)
    assert [(read["tokens"], read["loss_tokens"]) for read in (chats, texts)] == [each[1:] for each in once]
    assert manifest["counts"]["reasons"] == [
        {"reason": '"text" must be a string, this is a number', "records": 1},
        {"reason": "broken JSON: unexpected character, expected a JSON value at column ...", "records": 1},
        {"reason": "broken JSON: unexpected end of data at column ...", "records": 1},
        {"reason": "damaged: opening it fails", "records": 1},
        {"reason": "it has no loss tokens, so a model would learn nothing from it", "records": 1},
    ]
    words = ("--tokenizer", tokenizer, "--workers", 1, "--output", tmp_path / "store", "--json")
    store = json.loads(hbpack("tokenize", *corpus, *words).stdout)
    of_store = json.loads(hbpack("stats", tmp_path / "store", "--json").stdout)
    for each in (store, of_store):
        assert [source["read"] for source in each["sources"]] == [chats, texts]
        assert each["reasons"] == manifest["counts"]["reasons"]
    text = hbpack("stats", tmp_path / "store").stdout
    assert "skipped of" in text
    assert "Rejected, by reason" in text
    assert f"{corpus[1]}/b.parquet: damaged" in text
    assert (tmp_path / "out/tokens/tokens.json").read_bytes() == (tmp_path / "store/tokens/tokens.json").read_bytes()


def test_items_are_accounted_for(pack, hbpack, lines_of, tmp_path):
    asked = "What is the longest river of all, and how long is it? " * 30
    pairs = [{"prompt": f"{asked}{i}", "chosen": " The Nile.", "rejected": " It is long."} for i in range(9)]
    first = lines_of(*pairs, {"prompt": "a", "chosen": "b"}, name="pairs.jsonl")
    second = lines_of(*[CHAT] * 5, name="chats.jsonl")
    done = pack(first, f"{second}@2.0", "--groups", "4k", "--gpus", 1, "--json")
    assert done.code == 0, done.stderr
    record = json.loads(done.stdout)
    assert [each["samples"] for each in record["inputs"]] == [9, 10]
    manifest = json.loads((tmp_path / "out/hbpack.json").read_text())
    for name in ("tokens", "loss_tokens"):
        total = sum(group[f"num_{name}"] for group in manifest["groups"])
        assert sum(each[name] for each in record["inputs"]) == total
    reads = [source["read"] for source in record["sources"]]
    assert [(read["records"], read["rejected"]) for read in reads] == [(10, 1), (5, 0)]
    assert reads[0]["tokens"] == record["inputs"][0]["tokens"]
    assert 2 * reads[1]["tokens"] == record["inputs"][1]["tokens"]
    assert "asked for  items" in hbpack("stats", tmp_path / "out").stdout


@pytest.mark.parametrize(
    ("reasons", "kind"),
    [
        (("messages[0] has no role", "messages[12] has no role"), "messages[...] has no role"),
        (('no shape: has keys "a", "b"; x', "no shape: has keys none; y"), "no shape: has keys ..."),
        (("invalid UTF-8: byte 0xff at offset 10 of the line",), "invalid UTF-8: byte ... at offset ... of the line"),
        (("row group 1 cannot be read (why; not); its rows 11 to 20 are lost",), "row group ... cannot be read"),
        (("unknown \"from\" value 'abc'; known are", "unknown \"from\" value 'd'"), 'unknown "from" value ...'),
        (("\"x\" has no place in Stanford's prompt, as Bob's",), "\"x\" has no place in Stanford's prompt, as Bob's"),
        (("longer than 1,000 bytes, the limit",), "longer than ... bytes, the limit"),
        (("\"weight\" is -2.5; a weight is 0",), '"weight" is ...'),
    ],
)  # fmt: skip
def test_kinds_of_reasons(reasons, kind):
    assert {kind_of(reason) for reason in reasons} == {kind}


def test_the_most_frequent_kinds_are_kept(monkeypatch):
    monkeypatch.setattr(accounts, "MOST_KINDS", 2)
    kinds = Counter({"a": 1, "b": 5, "c": 2, "d": 2, accounts.OTHERS: 9})
    assert list(most_frequent(kinds).items()) == [("b", 5), ("c", 2), (accounts.OTHERS, 12)]
    assert most_frequent(Counter({"a": 1, "b": 1})) == {"a": 1, "b": 1}
