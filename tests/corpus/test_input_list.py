"""A list of inputs in place of folders: what it names is read, and nothing that differs from it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
import xxhash

from packer_cli.cli.main import main
from packer_cli.corpus.discover import discover, slice_corpus
from packer_cli.errors import HbpackError
from tests.cli_runner import Done, run

from .helpers import read_all


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two files in folders, and one that no list names."""
    for name in ("one/a.jsonl", "two/b.jsonl", "two/other.jsonl"):
        path = tmp_path / "data" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps({"text": f"{name} {i} words"}) + "\n" for i in range(9)))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "data"


def entry(data: Path, name: str, **values: object) -> dict[str, object]:
    content = (data / name).read_bytes()
    return {"path": name, "size": len(content), "xxh3": xxhash.xxh3_128_hexdigest(content), **values}


def write(path: Path, entries: list[dict[str, object]], *, is_array: bool = False) -> str:
    lines = "\n\n".join(map(json.dumps, entries)) + "\n"
    path.write_text(json.dumps(entries, indent=2) if is_array else lines)
    return f"@{path}"


def hbpack(*words: object) -> Done:
    return run(main, *words)


@pytest.mark.parametrize("is_array", [False, True])
def test_a_list_is_read_in_its_order(data: Path, is_array: bool) -> None:
    entries = [entry(data, "two/b.jsonl"), {"path": str(data / "one/a.jsonl")}]
    documents, rejects = read_all(write(data / "list.jsonl", entries, is_array=is_array))
    assert not rejects
    assert [each.text.split()[0] for each in documents] == ["two/b.jsonl"] * 9 + ["one/a.jsonl"] * 9


def test_a_list_has_a_weight(data: Path) -> None:
    listed = write(data / "list.jsonl", [entry(data, "one/a.jsonl")])
    (source,), _ = discover([f"{listed}@2.5"])
    assert (source.name, source.weight) == (listed, 2.5)


@pytest.mark.parametrize(
    ("values", "what"),
    [
        ({"size": 5}, "its size is 288, and 5 in the list of inputs"),
        ({"xxh3": "0" * 32}, f"and {'0' * 32} in the list of inputs"),
        ({"etag": "abc"}, "its ETag is None, and abc in the list of inputs"),
        ({"path": "two/gone.jsonl"}, "two/gone.jsonl: is missing, and the list"),
        ({"md5": "x"}, "not a list of inputs (it has 'md5', which this release does not know)"),
        ({"size": "many"}, "not a list of inputs (size is 'many', not an integer)"),
    ],
)
def test_what_differs_from_the_list(data: Path, values: dict[str, object], what: str) -> None:
    with pytest.raises(HbpackError) as caught:
        slice_corpus(discover([write(data / "list.jsonl", [entry(data, "one/a.jsonl", **values)])])[1])
    assert what in str(caught.value)


@pytest.mark.parametrize("text", ["", "{", "[1]", '{"size": 3}', "words"])
def test_what_is_not_a_list(data: Path, text: str) -> None:
    (data / "list.jsonl").write_text(text)
    with pytest.raises(HbpackError, match="not a list of inputs"):
        discover([f"@{data}/list.jsonl"])


def test_a_file_whose_name_begins_with_at(data: Path) -> None:
    os.rename(data / "one/a.jsonl", "@a.jsonl")
    assert len(read_all("@a.jsonl")[0]) == 9


def test_init_writes_a_list(repo: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.arange(1, 9, dtype=np.uint16).tofile(data / "one/ids.ds")
    np.array([3, 8], dtype=np.int64).tofile(data / "one/ids.ds.index")
    tokenizer = repo / "examples/sample/tokenizer"
    done = hbpack("init", "data", "--tokenizer", tokenizer, "--gpus", 1, "--list", "data/list.jsonl")
    assert done.code == 0, done.stderr
    entries = [json.loads(line) for line in (data / "list.jsonl").read_text().splitlines()]
    assert entries[0] == entry(data, "one/a.jsonl")
    assert [each["path"] for each in entries] == ["one/a.jsonl", "one/ids.ds", "two/b.jsonl", "two/other.jsonl"]
    assert '- "@data/list.jsonl"' in (tmp_path / "hbpack.yaml").read_text()
    assert hbpack("init", "data", "--list", "data/list.jsonl", "--output", "b.yaml").code == 2
    (data / "two/new.jsonl").write_text('{"text": "new"}\n')  # Nothing to the list.
    done = hbpack("pack", "--config", "hbpack.yaml", "--workers", 1)
    assert done.code == 0, done.stderr
    assert hbpack("append", "packed", "data/two/new.jsonl", "--workers", 1).code == 0
    for name in ("one/ids.ds", "two/b.jsonl"):
        content = bytearray((data / name).read_bytes())
        content[3] ^= 1
        (data / name).write_bytes(content)
        done = hbpack("tokenize", "--inputs", "data/list.jsonl", "--tokenizer", tokenizer, "--output", "S")
        assert done.code == 2
        assert f"data/{name}: its xxh3 is " in done.stderr
        content[3] ^= 1
        (data / name).write_bytes(content)
    words = ("--inputs", "list.jsonl", "--output", tmp_path / "S", "--json", "--config", tmp_path / "hbpack.yaml")
    monkeypatch.chdir(data)
    done = hbpack("tokenize", *words)
    assert json.loads(done.stdout)["num_samples"] == 29, done.stderr


def test_a_list_of_several_weights_is_refused(data: Path) -> None:
    done = hbpack("init", "data/one@2", "data/two", "--list", "list.jsonl")
    assert (done.code, Path("list.jsonl").exists()) == (2, False)
    assert "--list list.jsonl: a list has one weight, and the inputs have several" in done.stderr
    assert hbpack("init", "data/one@2", "data/two@2", "--list", "list.jsonl").code == 0
    assert '"@list.jsonl@2"' in Path("hbpack.yaml").read_text()
