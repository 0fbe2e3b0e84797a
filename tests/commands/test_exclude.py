"""`--exclude`: once older versions are pruned, no file of a set holds a trace of an excluded record."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest

from packer_cli.cli.main import main
from packer_cli.tokens.index import read_index
from packer_cli.tokens.store import open_store
from tests.cli_runner import run
from tests.reference import tree

SECRET = "qxzv jkwq zzvx vqjk xwzq kkzq jxqv wvzk"
"""Text of letters that no other record has in this order."""
ID = "patient-4711"
PLAN = ("--groups", "1k:1", "--gpus", 2, "--keep-columns", "license,id")


@pytest.fixture
def corpus(sample, tmp_path, monkeypatch):
    """Two weeks of chats in the current folder, one of them with the secret, and the file that excludes it."""
    monkeypatch.chdir(tmp_path)
    lines = (sample / "chats.jsonl").read_text(encoding="utf-8").splitlines()[:60]
    records = [json.loads(line) | {"id": f"user-{i}", "license": f"free-{i}"} for i, line in enumerate(lines)]
    records[7]["messages"][-1]["content"] += SECRET
    records[7] |= {"license": ID}
    for week in range(2):
        own = [json.dumps(record) + "\n" for record in records[30 * week : 30 * week + 30]]
        (tmp_path / f"week-{week}.jsonl").write_text("".join(own))
    (tmp_path / "remove.txt").write_text(f"id:{ID}\n")
    return tmp_path


def tokenizer_of(ids, sample, tmp_path):
    """A tokenizer whose ids are of this type."""
    folder = shutil.copytree(sample / "tokenizer", tmp_path / "tokenizer")
    if ids == "int32":
        path = folder / "tokenizer.json"
        values = json.loads(path.read_text())
        values["model"]["vocab"]["a token that no text has"] = 70_000
        path.write_text(json.dumps(values))
    return folder


def hbpack(*words, code=0):
    done = run(main, *words, *(() if words[0] in ("prune", "verify", "restore", "find") else ("--workers", 1)))
    assert done.code == code, done.stderr
    return done.stderr + done.stdout


def traces(out, ids):
    """The files that hold the tokens of the secret, in any encoding, or the kept column."""
    found = [np.array(ids, dtype=kind).tobytes() for kind in ("<u2", "<i4", "<i8")] + [
        ID.encode(),
        SECRET[:9].encode(),
    ]
    files = [path for path in out.rglob("*") if path.is_file()]
    return {path.relative_to(out).parts[-1] for path in files for trace in found if trace in path.read_bytes()}


def ids_of(tokenizer):
    from tokenizers import Tokenizer

    return Tokenizer.from_file(str(tokenizer / "tokenizer.json")).encode(SECRET).ids[2:-2]


@pytest.mark.parametrize(
    ("kind", "more"),
    [("uint16", ()), ("int32", ("--validation", "50%", "--dedup", "drop")), ("uint16", ("--index-only",))],
)
def test_no_trace_is_left(corpus, sample, tmp_path, kind, more):
    tokenizer = tokenizer_of(kind, sample, tmp_path)
    out, ids = tmp_path / "out", ids_of(tokenizer)
    hbpack("pack", "week-0.jsonl", "--tokenizer", tokenizer, *PLAN, *more, "--output", out)
    part = read_index(out / "tokens").parts[0].path
    assert part in traces(out, ids)
    assert str(open_store(out / "tokens").index.token_type) == kind
    assert any("shard" in name for name in traces(out, ids)) == (more != ("--index-only",))
    said = hbpack("append", out, "week-1.jsonl", "--exclude", "remove.txt")
    assert "1 of them excluded" in said
    assert part in traces(out, ids)  # Of the first version.
    hbpack("prune", out, "--keep", 1)
    assert traces(out, ids) == set()
    hbpack("verify", out)
    assert {"file": "week-0.jsonl", "line": 8, "reason": "excluded"} in [
        json.loads(line) for line in (out / "rejected.jsonl").read_text().splitlines()
    ]
    # The source still has it: neither the same pack nor another append brings it back.
    hbpack("pack", "week-0.jsonl", "week-1.jsonl", "--tokenizer", tokenizer, *PLAN, *more, "--output", out)
    hbpack("append", out)
    assert traces(out, ids) == set()
    fresh = tmp_path / "fresh"
    words = ("--tokenizer", tokenizer, *PLAN, *more, "--exclude", "remove.txt", "--output", fresh)
    hbpack("pack", "week-0.jsonl", "week-1.jsonl", *words)
    assert traces(fresh, ids) == set()
    assert contents(fresh) == contents(out)


def contents(out):
    return {path: data for path, data in tree(out).items() if "versions.jsonl" not in str(path)}


def test_a_file_that_is_gone_is_filtered_too(corpus, sample, tmp_path):
    out, ids = tmp_path / "out", ids_of(sample / "tokenizer")
    hbpack("pack", "week-0.jsonl", "--tokenizer", sample / "tokenizer", *PLAN, "--output", out)
    (tmp_path / "week-0.jsonl").rename(tmp_path / "kept.jsonl")
    said = hbpack("append", out, "week-1.jsonl", "--gone", "keep", "--exclude", "remove.txt", "--keep", 1)
    assert "1 of them excluded" in said
    assert len(open_store(out / "tokens")) == 59
    assert traces(out, ids) == set()
    assert "the set has this data already" in hbpack("append", out, "--gone", "keep")
    (tmp_path / "kept.jsonl").rename(tmp_path / "week-0.jsonl")
    hbpack("append", out)  # It shares a part with the other week again.
    assert len(open_store(out / "tokens")) == 59


def test_a_restored_version_has_it_until_the_next_run(corpus, sample, tmp_path):
    out, ids = tmp_path / "out", ids_of(sample / "tokenizer")
    hbpack("pack", "week-0.jsonl", "--tokenizer", sample / "tokenizer", *PLAN, "--output", out)
    hbpack("append", out, "--exclude", "remove.txt")
    hbpack("restore", f"{out}@1")
    assert len(open_store(out / "tokens")) == 30
    hbpack("append", out, "week-1.jsonl", "--keep", 1)
    assert len(open_store(out / "tokens")) == 59
    assert traces(out, ids) == set()


def test_what_find_prints_is_an_entry(corpus, sample, tmp_path):
    out = tmp_path / "out"
    hbpack("pack", "week-0.jsonl", "--tokenizer", sample / "tokenizer", *PLAN, "--output", out)
    place = json.loads(hbpack("find", out, "week-0.jsonl:8", "--json"))["places"][0]
    (tmp_path / "remove.txt").write_text(f"{place['hash']}\nweek-0.jsonl:1\n")
    assert "2 of them excluded" in hbpack("append", out, "--exclude", "remove.txt", "--keep", 1)
    assert traces(out, ids_of(sample / "tokenizer")) == set()


def test_a_file_that_is_not_there_is_named(corpus, sample):
    words = (
        "pack",
        "week-0.jsonl",
        "--tokenizer",
        sample / "tokenizer",
        *PLAN,
        "--output",
        "new",
        "--exclude",
        "none.txt",
    )
    done = run(main, *words)
    assert done.code == 2
    assert done.stderr.endswith(
        "error: --exclude none.txt: No such file or directory; name a text file with an entry a line\n"
    )


def test_versions_say_how_many_records_are_excluded(corpus, sample):
    hbpack("pack", "week-0.jsonl", "--tokenizer", sample / "tokenizer", *PLAN, "--output", "OUT")
    hbpack("append", "OUT", "--exclude", "remove.txt")
    assert "records that --exclude leaves out: 0 became 1" in run(main, "versions", "OUT", "--json").stdout


def test_exports_and_other_sets_that_still_hold_the_record_are_named(corpus, sample, tmp_path):
    from packer_cli.tokens.derived import DERIVED_NAME

    out, trl, other = tmp_path / "out", tmp_path / "trl", tmp_path / "other"
    hbpack("pack", "week-0.jsonl", "--tokenizer", sample / "tokenizer", *PLAN, "--output", out)
    before = tree(out)
    for _ in range(2):
        hbpack("export", out, "--to", "trl", "--output", trl)
    hbpack("export", out, "--to", "trl", "--output", tmp_path / "gone")
    run(main, "plan", out, "--output", other)
    hbpack("write", other)
    (of_other,) = (path for path in other.iterdir() if len(path.name) == 32)
    hbpack("export", other, "--to", "trl", "--output", tmp_path / "of-other")
    lines = [json.loads(line) for line in (out / DERIVED_NAME).read_text().splitlines()]
    assert {path: data for path, data in tree(out).items() if path != DERIVED_NAME} == before
    expected = [("trl", trl), ("trl", tmp_path / "gone"), ("set", of_other), ("trl", tmp_path / "of-other")]
    assert [(line["kind"], line["path"]) for line in lines] == [(kind, str(path)) for kind, path in expected]
    assert {line["store"] for line in lines} == {read_index(out / "tokens").fingerprint}
    may_hold = "of the exports and sets made from"
    assert may_hold not in hbpack("append", out, "week-1.jsonl")
    shutil.rmtree(tmp_path / "gone")
    named = f"3 {may_hold} {str(out)!r} may still hold excluded records: {trl}, {of_other}, {tmp_path / 'of-other'}; "
    assert named in hbpack("append", out, "--exclude", "remove.txt")
    assert named in run(main, "versions", out).stderr
    assert named in hbpack("prune", out, "--keep", 1)
    # What is made again no longer holds it, and an export of an earlier version would.
    shutil.rmtree(trl)
    hbpack("export", out, "--to", "trl", "--output", trl)
    run(main, "plan", out, "--output", other)
    assert f"2 {may_hold} {str(out)!r} may" in hbpack("write", other)
    shutil.rmtree(tmp_path / "of-other")
    assert f"1 {may_hold}" in run(main, "versions", out).stderr
    run(main, "prune", other, "--keep", 1)
    assert may_hold not in run(main, "versions", out).stderr


def test_a_set_that_cannot_be_written_to_only_gives_a_note(corpus, sample, tmp_path, monkeypatch):
    from packer_cli.tokens import derived

    def refuse(path, text):
        raise PermissionError(13, "Permission denied", str(path))

    out = tmp_path / "out"
    hbpack("pack", "week-0.jsonl", "--tokenizer", sample / "tokenizer", *PLAN, "--output", out)
    monkeypatch.setattr(derived, "write_text", refuse)
    said = hbpack("export", out, "--to", "trl", "--output", tmp_path / "trl")
    assert f"cannot be written ([Errno 13] Permission denied: '{out / derived.DERIVED_NAME}')" in said
    assert f"no later exclusion will name {tmp_path / 'trl'}" in said
