"""Folders and globs: what is read of them, and that what is not read is counted."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from backports import zstd

from packer_cli.cli.main import main
from packer_cli.corpus.discover import discover
from packer_cli.errors import InputError
from tests.cli_runner import Done, run

from .helpers import read_all

Compress = Callable[[bytes], bytes]


def records(name: str, number: int = 7) -> list[dict[str, str]]:
    return [{"text": f"{name}, sentence {i}"} for i in range(number)]


def lines(name: str, number: int = 7) -> bytes:
    return "".join(json.dumps(each) + "\n" for each in records(name, number)).encode()


def save(path: Path, data: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def names_read(folder: Path, *inputs: str) -> list[str]:
    _, files = discover(list(inputs) or [str(folder)])
    return sorted(str(Path(file.path).relative_to(folder)) for file in files)


def skipped(*inputs: object) -> dict[str, tuple[int, int]]:
    found = (each for source in discover([*map(str, inputs)])[0] for each in source.skipped or ())
    return {each.suffix: (each.num_files, each.num_bytes) for each in found}


def texts(*inputs: object) -> list[str]:
    documents, rejects = read_all(*map(str, inputs), are_single=False)
    assert not rejects
    return [document.text for document in documents]


@pytest.mark.parametrize("name", ["a.jsonl.bz2", "a.jsonl.xz", "a.ndjson.xz", "a.json.bz2", "part-00007"])
@pytest.mark.parametrize("num_streams", [3, pytest.param(1, marks=pytest.mark.slow)])
def test_bz2_and_xz(tmp_path: Path, name: str, num_streams: int) -> None:
    compress: Compress = lzma.compress if name.endswith("xz") else bz2.compress
    padding = b"\0" * 8 if name.endswith("xz") else b""
    data = b"".join(compress(lines(f"stream {i}", 20_000)) + padding for i in range(num_streams))
    expected = [each["text"] for i in range(num_streams) for each in records(f"stream {i}", 20_000)]
    assert texts(save(tmp_path / name, data)) == expected


@pytest.mark.parametrize(
    ("suffix", "compress"), [("bz2", bz2.compress), pytest.param("xz", lzma.compress, marks=pytest.mark.slow)]
)
def test_damaged_bz2_and_xz(tmp_path: Path, suffix: str, compress: Compress) -> None:
    whole = compress(lines("a", 100_000))  # Of several blocks.
    path = save(tmp_path / f"a.jsonl.{suffix}", whole[:-40])
    assert "the rest of the file is lost" in read_all(str(path))[1][-1].reason
    bad = bytearray(whole)
    bad[-len(bad) // 4] ^= 255
    assert "corrupt" in read_all(str(save(path, bytes(bad))))[1][-1].reason
    save(path, b"This is text.")
    with pytest.raises(InputError, match="cannot be read: not a "):
        read_all(str(path))


@pytest.mark.parametrize("compress", [bytes, gzip.compress, bz2.compress, lzma.compress, zstd.compress])
@pytest.mark.parametrize("name", ["part-00000", "train.00001"])
def test_lines_without_a_suffix(tmp_path: Path, name: str, compress: Compress) -> None:
    path = save(tmp_path / name, compress(b"\xef\xbb\xbf" + lines("x")))
    assert texts(tmp_path) == texts(path) == texts(tmp_path / "*") == [each["text"] for each in records("x")]


def test_columns_without_a_suffix(tmp_path: Path) -> None:
    table = pa.Table.from_pylist(records("x"))
    pq.write_table(table, tmp_path / "part-0")
    with pa.ipc.new_file(tmp_path / "part-1", table.schema) as writer:
        writer.write_table(table)
    assert texts(tmp_path) == 2 * [each["text"] for each in records("x")]


def test_a_long_first_line_without_a_suffix(tmp_path: Path) -> None:
    path = save(tmp_path / "big", json.dumps({"text": "x" * (3 << 20)}).encode())
    assert [len(text) for text in texts(path)] == [3 << 20]


@pytest.mark.parametrize(
    "data",
    [
        b"Some words\n" + lines("x"),
        b'{\n  "text": "one object"\n}\n',
        b"[1, 2]\n",
        b"{not JSON}\n" + lines("x"),
        gzip.compress(b"Some words\n", mtime=0),
        b"\x7fELF and more",
    ],
)
def test_other_files_without_a_suffix_are_counted(tmp_path: Path, data: bytes) -> None:
    save(tmp_path / "a.jsonl", lines("a", 100))
    path = save(tmp_path / "Makefile", data)
    assert names_read(tmp_path) == ["a.jsonl"]
    assert skipped(tmp_path) == {"no suffix": (1, len(data))}
    with pytest.raises(InputError, match="no suffix, and neither JSON lines nor Parquet or Arrow"):
        discover([str(path)])


def test_jsonlines(tmp_path: Path) -> None:
    save(tmp_path / "a.jsonlines", lines("a"))
    save(tmp_path / "b.jsonlines.gz", gzip.compress(lines("b")))
    assert texts(tmp_path) == [each["text"] for name in "ab" for each in records(name)]


@pytest.mark.parametrize("pattern", ["", "/*", "/**/*"])
def test_leftovers_are_not_read(tmp_path: Path, pattern: str) -> None:
    save(tmp_path / "data/a.jsonl", lines("a"))
    for name in (
        "_temporary/0/task/a.jsonl",
        "_tmp/a.jsonl",
        "_SUCCESS",
        "_metadata",
        ".a.jsonl.crc",
        "a.crc",
        "__MACOSX/a.jsonl",
        "sub/_temporary/a.jsonl",
        ".hidden/a.jsonl",
    ):
        save(tmp_path / "data" / name, lines("a", 50))
    assert texts(f"{tmp_path}/data{pattern}") == [each["text"] for each in records("a")]
    assert skipped(f"{tmp_path}/data{pattern}") == {}


def test_names_that_begin_with_an_underscore_are_counted(tmp_path: Path) -> None:
    save(tmp_path / "data/a.jsonl", lines("a"))
    mine = save(tmp_path / "data/_mine/b.jsonl", lines("b"))
    other = save(tmp_path / "data/_other.jsonl", lines("c"))
    assert names_read(tmp_path / "data") == ["a.jsonl"]
    assert skipped(tmp_path / "data") == {"_*": (2, mine.stat().st_size + other.stat().st_size)}
    for named in (mine, mine.parent, f"{tmp_path}/data/_mine/*", f"{tmp_path}/data/_m*"):
        assert texts(named) == [each["text"] for each in records("b")]
        assert skipped(named) == {}


def test_what_lies_beside_data_is_not_counted(tmp_path: Path) -> None:
    save(tmp_path / "a.jsonl", lines("a"))
    for name in ("README.md", "README", "LICENSE", "license.txt", "NOTICE.rst", "tokenizer.model", "vocab.json"):
        save(tmp_path / name, b'{"a": 1}')
    save(tmp_path / "config.json", b'{\n  "model_type": "llama"\n}\n')
    save(tmp_path / "empty.csv", b"")
    assert names_read(tmp_path) == ["a.jsonl"]
    assert skipped(tmp_path) == {}


@pytest.mark.parametrize("data", [lines("c"), json.dumps(records("c"), indent=1).encode()])
def test_a_config_json_of_records_is_data(tmp_path: Path, data: bytes) -> None:
    path = save(tmp_path / "config.json", data)
    assert texts(tmp_path) == texts(path) == [each["text"] for each in records("c")]


def test_suffixes_are_counted_one_by_one(tmp_path: Path) -> None:
    save(tmp_path / "a.jsonl", lines("a"))
    for name, size in {"a.csv": 10, "sub/b.csv": 20, "x.bin": 5, "y.parquet.gz": 7}.items():
        save(tmp_path / name, b"x" * size)
    assert skipped(tmp_path) == {".csv": (2, 30), ".gz": (1, 7), ".bin": (1, 5)}
    assert skipped(f"{tmp_path}/*.jsonl") == {}
    assert skipped(f"{tmp_path}/*") == skipped(tmp_path)


def hbpack(*words: object) -> Done:
    return run(main, *words)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A folder with more bytes that are not read than are."""
    save(tmp_path / "data/a.jsonl", lines("a", 20))
    for i in range(8):
        save(tmp_path / f"data/x.type{i}", b"x" * (1000 - i))
    return tmp_path / "data"


def test_more_is_skipped_than_read(repo: Path, tmp_path: Path, data: Path) -> None:
    words = ("--tokenizer", repo / "examples/sample/tokenizer", "--workers", 1, "--output")
    done = hbpack("tokenize", data, *words, tmp_path / "A")
    assert done.code == 2
    assert done.stderr == (
        f"error: {data}: more of it would be skipped, 1 file of .type0 (1000 B), 1 file of .type1 (999 B), "
        "1 file of .type2 (998 B), 1 file of .type3 (997 B), 4 files of other suffixes (3.9 KiB), than read (530 B); "
        "name its files, or a pattern such as *.jsonl, or give --allow-skipped\n"
    )
    assert not (tmp_path / "A").exists()
    assert hbpack("tokenize", f"{data}/*.jsonl", *words, tmp_path / "A").code == 0
    sizes = [1000 - i for i in range(8)]
    for output in ("B", "C"):
        done = hbpack("tokenize", data, *words, tmp_path / output, "--allow-skipped", "--json", "--shard", "0/1")
        assert sum(line.startswith("warning: skipped 1 file of .type0") for line in done.stderr.splitlines()) == 1
        assert [each["num_bytes"] for each in json.loads(done.stdout)["skipped"]] == sizes
    assert "skipped 1 file of .type0 (1000 B)" in json.loads(hbpack("status", tmp_path / "B", "--json").stdout)[
        "stages"
    ][0]["summary"].replace("\n", " ")


def test_a_set_and_a_config_say_what_was_skipped(repo: Path, tmp_path: Path, data: Path) -> None:
    for path in data.glob("*.type[1-7]"):
        path.unlink()
    save(data / "b.jsonl", lines("b", 40))
    words = ("--tokenizer", repo / "examples/sample/tokenizer", "--workers", 1)
    done = hbpack("pack", data, *words, "--groups", "1k:1", "--gpus", 1, "--output", tmp_path / "OUT", "--json")
    expected = [{"suffix": ".type0", "num_files": 1, "num_bytes": 1000}]
    assert json.loads(done.stdout)["sources"][0]["skipped"] == expected
    manifest = json.loads((tmp_path / "OUT/hbpack.json").read_text())
    assert manifest["sources"][0]["skipped"] == expected
    new = save(tmp_path / "new/c.jsonl", lines("c", 3))
    save(tmp_path / "new/c.rec", b"x" * 999)
    assert hbpack("append", tmp_path / "OUT", new.parent, "--workers", 1).code == 2
    done = hbpack("append", tmp_path / "OUT", new.parent, "--workers", 1, "--allow-skipped", "--json")
    assert [each["skipped"][0]["suffix"] for each in json.loads(done.stdout)["sources"]] == [".type0", ".rec"]
    for folder in (data, new.parent):
        done = hbpack("init", folder, "--output", tmp_path / f"{folder.name}.yaml")
        assert f"warning: {folder}: skipped 1 file of ." in done.stderr
        text = (tmp_path / f"{folder.name}.yaml").read_text()
        assert "# Skipped: 1 file of ." in text


def test_a_store_without_skipped_files_lists_none(tmp_path: Path, repo: Path) -> None:
    save(tmp_path / "data/a.jsonl", lines("a"))
    words = ("--tokenizer", repo / "examples/sample/tokenizer", "--workers", 1, "--output", tmp_path / "S")
    assert hbpack("tokenize", tmp_path / "data", *words).code == 0
    assert json.loads((tmp_path / "S/tokens/tokens.json").read_text())["sources"][0]["skipped"] is None
    assert discover([str(tmp_path / "data")])[0][0].skipped is None
