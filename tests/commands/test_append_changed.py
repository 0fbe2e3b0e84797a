"""`hbpack append` to a set whose inputs come and go: late files, and files that are gone."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from packer_cli.cli.main import main
from packer_cli.commands import pack_corpus
from packer_cli.commands.append import GONE_REMEDY
from packer_cli.tokens import stage
from packer_cli.tokens.index import read_index
from packer_cli.tokens.stage import library_versions
from tests.cli_runner import run
from tests.commands.test_append_inputs import packed
from tests.reference import current_tree, home, tree


@pytest.fixture
def lines(repo) -> list[str]:
    return (repo / "examples" / "sample" / "chats.jsonl").read_text().splitlines(keepends=True)


@pytest.fixture
def data(repo, lines, tmp_path, monkeypatch) -> Path:
    """A folder of four files, a file beside it, and more to come; the current folder is above."""
    home = tmp_path / "home"
    for number, name in enumerate(["data/a", "data/b", "data/c", "data/d", "one", "late/bb", "late/z", "new"]):
        path = home / f"{name}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(lines[30 * number : 30 * number + 30]))
    shutil.copytree(repo / "examples" / "sample" / "tokenizer", tmp_path / "tokenizer")
    monkeypatch.chdir(home)
    return home


def appended(out: Path, *words: object, code: int = 0) -> str:
    done = run(main, "append", out, *words, "--workers", 1)
    assert done.code == code, done.stderr
    return done.stderr


def shards(out: Path) -> dict[str, pa.Table]:
    """Rows of the current version's shards and ranks, without its fingerprint, which tells how the store is cut."""
    paths = [path for path in home(out).rglob("*.arrow") if {"shards", "ranks"} & {*path.parts}]
    assert len(paths) > 4
    return {path.name: pa.ipc.open_file(path).read_all().replace_schema_metadata(None) for path in paths}


@pytest.fixture
def out(data) -> Path:
    return packed(data.parent / "out", "data", "one.jsonl@2")


def arrive(data: Path, *names: str) -> None:
    for name in names:
        shutil.copy(data / "late" / name, data / "data" / name)


def test_late_files_are_new_inputs_in_the_order_of_their_arrival(out, data, tmp_path):
    by_name = Path(shutil.copytree(out, tmp_path / "by-name", symlinks=True))
    arrive(data, "z.jsonl")
    said = appended(out)
    assert "came late, and taken as new inputs: data/z.jsonl\n" in said
    assert "appended 1 input to 2; " in said
    assert "came late" not in appended(by_name, "data/z.jsonl")
    assert tree(out) == tree(by_name)
    arrive(data, "bb.jsonl")
    assert "came late, and taken as new inputs: data/bb.jsonl\n" in appended(out, "new.jsonl")
    appended(by_name, "data/bb.jsonl", "new.jsonl")
    assert tree(out) == tree(by_name)
    named = ("data/[abcd].jsonl", "one.jsonl@2", "data/z.jsonl", "data/bb.jsonl", "new.jsonl")
    assert shards(out) == shards(packed(tmp_path / "fresh", *named))
    for words in ((), ("new.jsonl",), ("one.jsonl@2",)):
        before, said = tree(out), appended(out, *words)
        assert "the set has this data already" in said
        assert "changed: " not in said
        assert tree(out) == before
    packed(out, "data", "one.jsonl@2")
    assert current_tree(out) == current_tree(packed(tmp_path / "all", "data", "one.jsonl@2"))


def test_a_late_file_has_the_weight_of_its_input(data, tmp_path):
    out, want = packed(tmp_path / "out", "data@3", "one.jsonl"), packed(tmp_path / "want", "data@3", "one.jsonl")
    arrive(data, "z.jsonl")
    appended(out)
    appended(want, "data/z.jsonl@3")
    assert tree(out) == tree(want)
    out = packed(tmp_path / "shares", "data@1Mtokens", "one.jsonl")
    before = tree(out)
    arrive(data, "bb.jsonl")
    assert appended(out, code=2) == (
        "error: data/bb.jsonl: came late to data, which has a number or share of tokens; name it as an input with a "
        "weight of its own\n"
    )
    assert tree(out) == before
    assert "came late" not in appended(out, "data/bb.jsonl@2")


def test_a_table_without_rows_does_not_come_late(data, tmp_path):
    """The store has nothing of it, so a set does not tell whether it knows the file."""
    table = pa.table({"text": pa.array([], pa.string())})
    for name in ("data/empty.parquet", "nothing.parquet"):
        pq.ParquetWriter(data / name, table.schema).close()
    out = packed(tmp_path / "out", "nothing.parquet", "data")
    before = tree(out)
    assert "the set has this data already" in appended(out)
    assert tree(out) == before
    pq.write_table(pa.table({"text": ["Some text."]}), data / "data" / "empty.parquet")
    assert "came late, and taken as new inputs: data/empty.parquet\n" in appended(out)


@pytest.mark.parametrize("name", ["data/b.jsonl", "one.jsonl"])
def test_a_file_that_is_gone(out, data, tmp_path, name):
    """One of a part that several share."""
    copies = shutil.copytree(data, tmp_path / "copies")
    keep = Path(shutil.copytree(out, tmp_path / "keep", symlinks=True))
    (data / name).unlink()
    before = tree(out)
    assert appended(out, "new.jsonl", code=2) == f"error: {name}: gone since the set was packed; {GONE_REMEDY}\n"
    assert tree(out) == before

    assert f"gone, and dropped from the set: {name}\n" in appended(out, "--gone", "drop")
    rest = ("data", "one.jsonl@2") if name != "one.jsonl" else ("data",)
    assert current_tree(out) == current_tree(packed(tmp_path / "rest", *rest))
    assert "the set has this data already" in appended(out)

    said = appended(keep, "--gone", "keep")
    assert f"gone, and kept in the set: {name}\n" in said
    assert "changed: " not in said
    assert tree(keep) == before
    arrive(data, "z.jsonl")
    said = appended(keep, "new.jsonl", "--gone", "keep")
    assert "changed: 2 files added; 1 of 2 parts to tokenize" in said
    named = (f"{copies}/data", f"{copies}/one.jsonl@2", "data/z.jsonl", "new.jsonl")
    assert shards(keep) == shards(packed(tmp_path / "want", *named))
    before = tree(keep)
    assert "the set has this data already" in appended(keep, "--gone", "keep")
    assert tree(keep) == before
    (data / "data" / "a.jsonl").write_text((data / "late" / "bb.jsonl").read_text())  # In the part that stays.
    assert "error: data/a.jsonl: has changed since it was packed; " in appended(keep, "--gone", "keep", code=2)
    shutil.copy(copies / "data" / "a.jsonl", data / "data" / "a.jsonl")
    shutil.copy(copies / name, data / "again.jsonl")
    refused = f"error: again.jsonl is in the set already, as {name}; leave it out\n"
    assert appended(keep, "again.jsonl", "--gone", "keep", code=2).endswith(refused)
    assert tree(keep) == before
    appended(keep, "--gone", "drop")
    rest = ("data/[acd].jsonl", "one.jsonl@2") if name != "one.jsonl" else ("data/[abcd].jsonl",)
    assert shards(keep) == shards(packed(tmp_path / "last", *rest, "data/z.jsonl", "new.jsonl"))


@pytest.mark.slow
def test_large_files_that_are_gone(data, lines, tmp_path, monkeypatch):
    """Each of several slices has a part of its own; of two copies, too."""
    for name in ("big1", "big2"):
        (data / "data" / f"{name}.jsonl").write_text("".join(lines[:1000]) * 30)
    copies = shutil.copytree(data, tmp_path / "copies")
    out = packed(tmp_path / "out", "data", "one.jsonl")
    index = read_index(out / "tokens")
    assert len(index.parts) > len({part.fingerprint for part in index.parts}) > 3
    drop, before = Path(shutil.copytree(out, tmp_path / "drop", symlinks=True)), tree(out)
    for name in ("big1", "big2", "c"):
        (data / "data" / f"{name}.jsonl").unlink()
    said = appended(out, "--gone", "keep")
    assert "gone, and kept in the set: data/big1.jsonl, data/big2.jsonl, data/c.jsonl\n" in said
    assert tree(out) == before
    appended(out, "new.jsonl", "--gone", "keep")
    assert shards(out) == shards(packed(tmp_path / "want", f"{copies}/data", "one.jsonl", "new.jsonl"))
    appended(drop, "new.jsonl", "--gone", "drop")
    assert current_tree(drop) == current_tree(packed(tmp_path / "rest", "data", "one.jsonl", "new.jsonl"))


def test_tokens_of_what_is_gone_cannot_be_made_again(out, data, tmp_path, monkeypatch):
    (data / "one.jsonl").unlink()
    before = tree(out)
    refused = (
        "error: --gone keep: inputs are gone, so their tokens cannot be made again, and {}; put them back, or take "
        "them out of the set with --gone drop\n"
    )
    with monkeypatch.context() as patch:
        versions = {**library_versions("auto"), "jinja2": "99.0"}
        patch.setattr(stage, "library_versions", lambda schema: versions)
        why = f"jinja2 {library_versions('auto')['jinja2']} -> 99.0"
        assert appended(out, "new.jsonl", "--gone", "keep", code=2).endswith(refused.format(why))
        assert tree(out) == before
    (part,) = (out / "tokens").glob("part-*.arrow")
    content = part.read_bytes()
    part.write_bytes(content[:-1])
    why = f"{part.name} is damaged"
    assert appended(out, "new.jsonl", "--gone", "keep", code=2).endswith(refused.format(why))
    part.write_bytes(content)
    tokenizer = shutil.copytree(tmp_path / "tokenizer", tmp_path / "other")
    (tokenizer / "tokenizer.json").write_text((tokenizer / "tokenizer.json").read_text().replace("<|end|>", "<|fin|>"))
    (tokenizer / "tokenizer_config.json").write_text(
        (tokenizer / "tokenizer_config.json").read_text().replace("<|end|>", "<|fin|>")
    )
    said = appended(out, "new.jsonl", "--gone", "keep", "--tokenizer", tokenizer, code=2)
    assert "is not the tokenizer that the set was made with" in said
    assert tree(out) == before


def test_inputs_that_are_gone_as_a_whole(data, tmp_path):
    """By each kind of name, from another folder as well."""
    (data / "list.jsonl").write_text('{"path": "new.jsonl"}\n')
    out = packed(tmp_path / "out", "data/a.jsonl", "late", "data/[bc].jsonl", str(data / "one.jsonl"), "@list.jsonl")
    shutil.rmtree(data / "late")
    (data / "one.jsonl").unlink()
    for name in "abc":
        (data / "data" / f"{name}.jsonl").unlink()
    names = f"data/a.jsonl, late/bb.jsonl, late/z.jsonl, data/b.jsonl, data/c.jsonl, {data / 'one.jsonl'}"
    assert appended(out, code=2) == f"error: {names}: gone since the set was packed; {GONE_REMEDY}\n"
    assert f"kept in the set: {names}\n" in appended(out, "--gone", "keep")
    assert f"dropped from the set: {names}\n" in appended(out, "--gone", "drop")
    assert current_tree(out) == current_tree(packed(tmp_path / "rest", "@list.jsonl"))
    (data / "list.jsonl").write_text('{"path": "data/d.jsonl"}\n')
    said = appended(out, "--gone", "drop")
    assert "came late, and taken as new inputs: data/d.jsonl\n" in said
    assert "gone, and dropped from the set: new.jsonl\n" in said


def test_a_file_of_another_name_is_the_same_file(out, data):
    (data / "data" / "b.jsonl").rename(data / "data" / "y.jsonl")
    before = shards(out)
    said = appended(out)
    assert "came late" not in said
    assert "changed: " not in said
    paths = {file.path for part in read_index(out / "tokens").parts for file in part.files}
    assert paths == {*(f"data/{name}.jsonl" for name in "aycd"), "one.jsonl"}
    assert shards(out) == before


@pytest.mark.parametrize("stage_name", ["make_whole", "PackedOutput"])
@pytest.mark.parametrize("gone", ["keep", "drop"])
def test_an_interrupted_append_goes_on(out, data, tmp_path, monkeypatch, stage_name, gone):
    arrive(data, "z.jsonl")
    (data / "data" / "b.jsonl").unlink()
    whole = Path(shutil.copytree(out, tmp_path / "whole", symlinks=True))
    words = ("new.jsonl", "--gone", gone)
    appended(whole, *words)
    work = getattr(pack_corpus, stage_name)

    def interrupted(*arguments, **options):
        if stage_name == "make_whole":
            work(*arguments, **options)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(pack_corpus, stage_name, interrupted)
        appended(out, *words, code=130)
    assert "did not end; finish it first with hbpack append" in appended(out, "late/bb.jsonl", "--gone", gone, code=2)
    appended(out, *words)
    assert tree(out) == tree(whole)
