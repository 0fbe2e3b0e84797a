"""Files that a run reads again, and those that it knows by their stamps."""

from __future__ import annotations

import json
import mmap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from packer_cli.commands.tokenize import run_tokenize
from packer_cli.config import TokenizeConfig
from packer_cli.corpus.unchanged import is_settled as is_settled_by
from packer_cli.engine.array import ArrayIds
from packer_cli.engine.local import LocalEngine
from packer_cli.tokens import input_slices
from packer_cli.tokens.index import StoreIndex
from packer_cli.tokens.known_inputs import NAME

Run = Callable[..., StoreIndex | None]


def line(word: str, padding: int = 0) -> str:
    return json.dumps({"text": f"{word} ipsum", "of_no_use": " " * padding}) + "\n"


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """A small file of each kind, and a large one."""
    folder = tmp_path / "corpus"
    folder.mkdir()
    (folder / "a.jsonl").write_text(line("lorem"))
    (folder / "b.json").write_text(f"[{line('dolor')}]")
    (folder / "c.txt").write_text("amet")
    pq.write_table(pa.table({"text": ["one", "two"]}), folder / "d.parquet")
    (folder / "e.jsonl").write_text(line("sit", 2**20) * 9)
    return folder


@pytest.fixture
def run(corpus: Path, tmp_path: Path, repo: Path) -> Run:
    def call(out: str = "out", ids: ArrayIds | None = None, **options: Any) -> StoreIndex | None:
        tokenizer = str(repo / "examples" / "sample" / "tokenizer")
        config = TokenizeConfig(inputs=(str(corpus),), tokenizer=tokenizer, **options)
        with LocalEngine(1) as engine:
            return run_tokenize(config, tmp_path / out, engine, ids)

    return call


@pytest.fixture
def is_settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files that were just written count as left alone."""
    monkeypatch.setattr("packer_cli.corpus.unchanged.SETTLED_SECONDS", -3600)


@pytest.fixture
def cut(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the files that were read to be cut, since the list was cleared."""
    names: list[str] = []
    slice_corpus = input_slices.slice_corpus

    def noting(files: Any) -> Any:
        names.extend(Path(file.path).name for file in files)
        return slice_corpus(files)

    monkeypatch.setattr(input_slices, "slice_corpus", noting)
    monkeypatch.setattr(input_slices, "COLUMNAR", ())  # In this process.
    return names


ALL = ["a.jsonl", "b.json", "c.txt", "d.parquet", "e.jsonl"]


@pytest.mark.usefixtures("is_settled")
def test_files_that_are_as_they_were_are_not_read(run: Run, cut: list[str]) -> None:
    first = run()
    assert sorted(cut) == ["b.json", "d.parquet", "e.jsonl"]  # The others are read by whoever encodes them.
    cut.clear()
    assert run() == first
    assert cut == []
    assert run(recheck=True) == first
    assert sorted(cut) == ALL


@pytest.mark.usefixtures("is_settled")
@pytest.mark.parametrize("name", ["a.jsonl", "e.jsonl"])
def test_a_file_that_was_rewritten_with_the_same_size(corpus: Path, run: Run, cut: list[str], name: str) -> None:
    before = run()
    text = (corpus / name).read_text()
    (corpus / name).write_text(text.replace("ipsum", "IPSUM"))
    assert (corpus / name).stat().st_size == len(text)
    cut.clear()
    after = run()
    assert cut == [name]
    assert after != before
    assert run("other") == after


def test_a_file_that_was_just_written_is_read_again(run: Run, cut: list[str], tmp_path: Path) -> None:
    first = run()
    assert not (tmp_path / "out/tokens" / NAME).exists()
    cut.clear()
    assert run() == first
    assert sorted(cut) == ALL


@pytest.mark.slow
def test_a_writer_that_holds_the_file_mapped(corpus: Path, run: Run) -> None:
    """Its second store to a page moves no time of the file."""
    path = corpus / "a.jsonl"
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
        mapped[0] = mapped[0]
        stamp = path.stat().st_mtime_ns, path.stat().st_ctime_ns
        before = run()
        mapped[12] = ord("y")
        assert (path.stat().st_mtime_ns, path.stat().st_ctime_ns) == stamp
        after = run()
    assert after != before
    assert run("other") == after


@pytest.mark.usefixtures("is_settled")
def test_an_array_notes_what_its_tasks_read(run: Run, cut: list[str], tmp_path: Path) -> None:
    for number in range(3):
        run(ids=ArrayIds(id=number, num_tasks=3))
    whole = run("whole")
    known, of_whole = (json.loads((tmp_path / out / "tokens" / NAME).read_text()) for out in ("out", "whole"))
    assert known == of_whole
    cut.clear()
    assert run() == whole
    assert cut == []


@pytest.mark.usefixtures("is_settled")
def test_a_file_of_two_inputs_is_read_for_each(corpus: Path, tmp_path: Path, repo: Path) -> None:
    tokenizer = str(repo / "examples" / "sample" / "tokenizer")
    config = TokenizeConfig(inputs=(str(corpus), f"{corpus}/a.jsonl@2", f"{corpus}/e.jsonl"), tokenizer=tokenizer)
    with LocalEngine(1) as engine:
        first, second, third = (run_tokenize(config, tmp_path / "out", engine) for _ in range(3))
    assert first == second == third
    assert (tmp_path / "out" / "tokens" / NAME).exists()


@pytest.mark.parametrize(
    ("path", "stamp", "settled"),
    [
        ("a", "1:5000000001:5000000001:7", True),
        ("a", "1:5000000001:5000000000:7", False),  # A file system of whole seconds.
        ("a", "1:5000000001:95000000001:7", False),
        ("s3://b/a", '1:"etag"', True),
        ("s3://b/a", "1:None", False),
        ("https://host/a", '1:"etag"', False),
        ("local://a", "1:5.5", False),
    ],
)
def test_stamps_that_tell_of_every_change(path: str, stamp: str, settled: bool) -> None:
    assert is_settled_by(path, stamp, since=100.0) == settled
