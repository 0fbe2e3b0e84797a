"""A file that changes between being listed, cut and read is an error, whatever its format and however it changed."""

from __future__ import annotations

import gzip
import json
import mmap
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from packer_cli.corpus import blocks, unchanged
from packer_cli.corpus.discover import discover, slice_corpus
from packer_cli.corpus.read import SliceReader
from packer_cli.corpus.readers.base import ReadRules
from packer_cli.errors import RunError
from tests.corpus.helpers import write_jsonl
from tests.corpus.test_formats import as_saved
from tests.corpus.test_token_files import write_datatrove, write_dolma, write_megatron


def texts(turn: int) -> list[dict[str, str]]:
    """Twelve records, turned: other content of the same size."""
    records = [{"text": f"{number:02} {'lorem ' * 20}"} for number in range(12)]
    return records[turn:] + records[:turn]


def ids(turn: int) -> list[list[int]]:
    documents = [[*range(number + 3, number + 20), 1] for number in range(12)]
    return documents[turn:] + documents[:turn]


def _array(path: Path, turn: int) -> None:
    path.write_text(json.dumps(texts(turn)))


def _arrow(path: Path, turn: int) -> None:
    table = pa.Table.from_pylist(texts(turn))
    with pa.ipc.new_file(path, table.schema) as writer:
        writer.write_table(table, max_chunksize=3)


def _stream(turn: int) -> bytes:
    table, out = pa.Table.from_pylist(texts(turn)), pa.BufferOutputStream()
    with pa.ipc.new_stream(out, table.schema) as writer:
        writer.write_table(table, max_chunksize=3)
    return out.getvalue().to_pybytes()


FORMATS: dict[str, Callable[[Path, int], object]] = {
    "a.jsonl": lambda path, turn: write_jsonl(path, texts(turn)),
    "a.json": _array,
    "a.txt": lambda path, turn: path.write_text("".join(record["text"] for record in texts(turn))),
    "a.jsonl.gz": lambda path, turn: path.write_bytes(
        gzip.compress("".join(json.dumps(each) + "\n" for each in texts(turn)).encode(), mtime=0)
    ),
    "a.parquet": lambda path, turn: pq.write_table(pa.Table.from_pylist(texts(turn)), path, row_group_size=3),
    "a.arrow": _arrow,
    "stream.arrow": lambda path, turn: path.write_bytes(_stream(turn)),
    "saved": lambda path, turn: as_saved(texts(turn), path),
    "tokens.bin": lambda path, turn: write_megatron(path, ids(turn)),
    "a.ds": lambda path, turn: write_datatrove(path, ids(turn)),
    "a.npy": lambda path, turn: write_dolma(path, ids(turn)),
}
CONTENT_CHECKED = (
    "a.jsonl",
    "a.json",
    "a.txt",
    "a.jsonl.gz",
    "a.arrow",
    "tokens.bin",
    "a.ds",
    "a.npy",
    "stream.arrow",
)
"""Formats whose slices have checksums, so that changes show that no stamp tells."""


TICK = 0.02
"""Seconds after which the times of files differ for certain: their clock ticks every 4 to 10 ms."""


def rewrite(path: Path, write: Callable[[Path, int], object]) -> None:
    time.sleep(TICK)
    if path.is_dir():
        shutil.rmtree(path)
    write(path, 5)


def replace(path: Path, write: Callable[[Path, int], object]) -> None:
    """Another file, or folder, takes the name; the old one stays as it was."""
    time.sleep(TICK)
    (path.parent / "other").mkdir()
    write(path.parent / "other" / path.name, 5)
    for found in sorted((path.parent / "other").iterdir()):
        if found.is_dir():
            shutil.rmtree(path)
        found.rename(path.parent / found.name)


def shorten(path: Path, _: Callable[[Path, int], object]) -> None:
    time.sleep(TICK)
    for found in path.glob("*.arrow") if path.is_dir() else [path]:
        os.truncate(found, found.stat().st_size - 40)


def read(path: Path, *, when_cut: Callable[[], object], when_listed: Callable[[], object] = lambda: None) -> int:
    """Read all slices but the last before the file changes. Returns the number of records."""
    files = discover([str(path)])[1]
    when_listed()
    slices = slice_corpus(files, slice_bytes=400)
    reader = SliceReader(rules=ReadRules(vocab_size=100, eos_id=1))

    def count(number: int) -> int:
        batches = list(reader.read(slices[number]))
        return sum(len(b.documents) + (0 if b.tokens is None else len(b.tokens.lines)) for b in batches)

    before = sum(map(count, range(len(slices) - 1)))
    when_cut()
    return before + count(len(slices) - 1)


@pytest.mark.parametrize("change", [rewrite, replace, shorten])
@pytest.mark.parametrize("name", FORMATS)
def test_a_file_that_changes_is_an_error(tmp_path, name, change):
    path, write = tmp_path / name, FORMATS[name]
    for moment in ("when_cut", "when_listed"):
        write(path, 0)
        moments = {"when_cut": lambda: None, moment: lambda: change(path, write)}
        with pytest.raises(RunError) as caught:
            read(path, **moments)
        assert str(caught.value) == (
            f"{path}: the file has changed since the run began; run again once nothing writes to it"
        )
        shutil.rmtree(tmp_path / "other", ignore_errors=True)
        if path.is_dir():
            shutil.rmtree(path)


@pytest.mark.parametrize("name", FORMATS)
def test_a_file_that_is_only_touched_is_read(tmp_path, name):
    path = tmp_path / name
    FORMATS[name](path, 0)

    def touch() -> None:
        for each in path.rglob("*") if path.is_dir() else [path]:
            each.chmod(0o600)
            os.utime(each)

    assert read(path, when_cut=touch) == (1 if name == "a.txt" else 12)


@pytest.mark.parametrize("name", CONTENT_CHECKED)
def test_text_is_compared_although_its_stamp_is_the_same(tmp_path, name, monkeypatch):
    path, write = tmp_path / name, FORMATS[name]
    write(path, 0)
    monkeypatch.setattr(unchanged, "stamp_of_stat", lambda found: f"{found.st_size}:0:0:0")
    with pytest.raises(RunError, match="has changed"):
        read(path, when_cut=lambda: write(path, 5))


@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.txt", "a.jsonl.gz"])
def test_text_is_not_read_again_for_its_checksum(tmp_path, name, monkeypatch):
    path = tmp_path / name
    FORMATS[name](path, 0)
    monkeypatch.setattr(blocks, "file_checksum", None)
    assert read(path, when_cut=lambda: None) == (1 if name == "a.txt" else 12)


MAPPED = ("a.arrow", "lz4.arrow", "tokens.bin", "a.ds", "a.npy")
"""Formats that other programs write by mapping them into memory."""


def _compressed(path: Path, turn: int) -> None:
    table = pa.Table.from_pylist(texts(turn))
    with pa.ipc.new_file(path, table.schema, options=pa.ipc.IpcWriteOptions(compression="lz4")) as writer:
        writer.write_table(table, max_chunksize=3)


@pytest.mark.parametrize("name", MAPPED)
@pytest.mark.parametrize("place", [0.45, 0.8])
def test_a_writer_that_holds_the_file_mapped(tmp_path, name, place):
    """Its stores move no time of the file until the kernel writes the page back; one byte of a later slice counts."""
    path, write = tmp_path / name, FORMATS.get(name, _compressed)
    write(path, 0)
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
        mapped[0] = mapped[0]  # The first store to a page may move the times.
        files = discover([str(path)])[1]
        slices = slice_corpus(files, slice_bytes=200)
        reader = SliceReader(rules=ReadRules(vocab_size=100, eos_id=1))
        assert len(slices) > 1
        before = path.stat()
        at = int(len(mapped) * place)
        mapped[at] ^= 1
        assert path.stat().st_mtime_ns == before.st_mtime_ns
        with pytest.raises(RunError, match="has changed"):
            [list(reader.read(slice_)) for slice_ in slices]
        mapped[at] ^= 1
        assert sum(len(list(reader.read(slice_))) for slice_ in slices)


def test_a_small_file_that_is_read_at_once(tmp_path):
    path = write_jsonl(tmp_path / "a.jsonl", texts(0))
    (file,) = discover([str(path)])[1]
    assert unchanged.hold(file).content == path.read_bytes()
    path.chmod(0o600)
    assert unchanged.hold(file).fingerprint == unchanged.content_of(file)
    write_jsonl(path, texts(5))
    os.utime(path, ns=(0, 0))
    with pytest.raises(RunError, match="has changed"):
        unchanged.hold(file)
