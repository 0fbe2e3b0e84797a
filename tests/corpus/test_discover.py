"""From what the user names to files, and the errors on the way, word for word."""

from __future__ import annotations

import errno
import glob
import gzip
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from packer_cli.corpus.discover import discover, slice_corpus
from packer_cli.corpus.input_text import parse_input
from packer_cli.errors import ConfigError, InputError
from packer_cli.sizes import EpochShare, TokenShare

from .helpers import TEXT, write_jsonl

KNOWN = (
    "hbpack reads .arrow, .bin, .ds, .feather, .ipc, .json, .jsonl, .jsonlines, .md, .ndjson, .npy, .parquet, "
    ".text, .txt, and text and JSON also with .bz2, .gz, .xz or .zst"
)


def paths(*inputs: object) -> list[str]:
    return [file.path for file in discover([str(name) for name in inputs])[1]]


def error(*inputs: object) -> str:
    with pytest.raises(InputError) as caught:
        slice_corpus(discover([str(name) for name in inputs])[1])
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a.jsonl", ("a.jsonl", 1.0)),
        ("a.jsonl@2.0", ("a.jsonl", 2.0)),
        ("a.jsonl@.5", ("a.jsonl", 0.5)),
        ("me@home/a.jsonl", ("me@home/a.jsonl", 1.0)),
        ("me@home/a.jsonl@3", ("me@home/a.jsonl", 3.0)),
        ("owner/name:train@2", ("owner/name:train", 2.0)),
        ("a.jsonl@1e6", ("a.jsonl", 1e6)),
        ("a.jsonl@1_0", ("a.jsonl@1_0", 1.0)),
        ("a.jsonl@٢", ("a.jsonl@٢", 1.0)),
        ("a@1_0.jsonl@2.5e-1", ("a@1_0.jsonl", 0.25)),
    ],
)
def test_weights(text: str, expected: tuple[str, float]) -> None:
    assert parse_input(text) == expected


def test_a_path_that_exists_wins_over_a_weight(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a@2", [TEXT])
    assert parse_input(str(path)) == (str(path), 1.0)
    assert parse_input(f"{path}@3") == (str(path), 3.0)


@pytest.mark.parametrize(
    ("text", "tokens", "written"),
    [
        ("2Btokens", 2 * 10**9, "2Btokens"),
        ("500mtokens", 5 * 10**8, "500Mtokens"),
        ("1.5ktokens", 1500, "1500tokens"),
        ("10ktokens", 10_000, "10ktokens"),
        ("3Ttokens", 3 * 10**12, "3Ttokens"),
    ],
)
def test_numbers_of_tokens(text: str, tokens: int, written: str) -> None:
    name, share = parse_input(f"a.jsonl@{text}")
    assert (name, share) == ("a.jsonl", TokenShare(tokens))
    assert str(share) == written
    assert parse_input(f"a.jsonl@{share}") == (name, share)


@pytest.mark.parametrize(("text", "percent", "written"), [("70%", 70.0, "70%"), ("33.40%", 33.4, "33.4%")])
def test_shares_of_an_epoch(text: str, percent: float, written: str) -> None:
    name, share = parse_input(f"a.jsonl@{text}")
    assert (name, share) == ("a.jsonl", EpochShare(percent))
    assert str(share) == written
    assert parse_input(f"a.jsonl@{share}") == (name, share)


@pytest.mark.parametrize("text", ["0%", "100.1%"])
def test_bad_shares_of_an_epoch(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_input(f"a.jsonl@{text}")
    assert str(caught.value) == (
        f"a.jsonl@{text}: the share must be above 0 % and at most 100 %; leave out an input of none"
    )


@pytest.mark.parametrize("text", ["0tokens", "0.3tokens", "9999999999Ttokens"])
def test_bad_numbers_of_tokens(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_input(f"a.jsonl@{text}")
    assert str(caught.value) == (
        f"a.jsonl@{text}: the number of tokens must be from 1 to 2^62; leave out an input of none"
    )


@pytest.mark.parametrize("weight", ["0", "-1", "inf", "nan"])
def test_bad_weights(weight: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_input(f"a.jsonl@{weight}")
    assert str(caught.value) == (
        f"a.jsonl@{weight}: the weight must be above 0 and finite; leave out an input of no weight"
    )


@pytest.mark.parametrize("weight", ["1000000.1", "1e12"])
def test_weights_that_are_a_slip_of_the_pen(weight: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_input(f"a.jsonl@{weight}")
    assert str(caught.value) == (
        f"a.jsonl@{weight}: the weight must be at most 1000000, as each epoch holds a sample that often; "
        "give a smaller one, or more epochs"
    )


@pytest.mark.parametrize("weight", ["two", "1_0", "٢", "２.5"])
def test_a_weight_that_is_no_number(tmp_path: Path, weight: str) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", [TEXT])
    with pytest.raises(ConfigError) as caught:
        parse_input(f"{path}@{weight}")
    assert (
        str(caught.value)
        == f"{path}@{weight}: the weight {weight!r} is not a number; write {path}@2.0, {path}@500Mtokens or {path}@70%"
    )
    with pytest.raises(ConfigError) as caught:
        parse_input("@2")
    assert str(caught.value) == "@2: there is no path before the weight; write PATH@2"


def test_sources_keep_order_name_and_weight(tmp_path: Path) -> None:
    a, b = write_jsonl(tmp_path / "a.jsonl", [TEXT]), write_jsonl(tmp_path / "b.jsonl", [TEXT])
    sources, files = discover([f"{b}@2", str(a), f"{b}@0.5"])
    assert [(s.name, s.share) for s in sources] == [(str(b), 2), (str(a), 1), (str(b), 0.5)]
    assert [(f.source_id, f.path) for f in files] == [(0, str(b)), (1, str(a)), (2, str(b))]


def test_folders_are_walked_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("b.jsonl", "a/z.txt", "a/c.jsonl", ".hidden.jsonl", ".git/x.txt", "notes.csv", "README.md"):
        write_jsonl(tmp_path / "data" / name, [TEXT])
    (tmp_path / "data/empty.jsonl").touch()
    (tmp_path / "data/a/up").symlink_to(tmp_path / "data")
    monkeypatch.chdir(tmp_path)
    assert paths("data") == ["data/a/c.jsonl", "data/a/z.txt", "data/b.jsonl"]
    assert paths("data/*.jsonl") == ["data/b.jsonl"]
    assert paths("data/*") == ["data/a/c.jsonl", "data/a/z.txt", "data/b.jsonl"]
    assert paths("data/**/*.jsonl") == ["data/a/c.jsonl", "data/b.jsonl"]
    assert paths("data/README.md", "data/empty.jsonl") == ["data/README.md", "data/empty.jsonl"]


def test_a_link_to_a_folder_above_is_not_followed_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel counts links twice where it walks a path again, and then refuses what it has just listed."""
    write_jsonl(tmp_path / "data/a/c.jsonl", [TEXT])
    (tmp_path / "data/a/up").symlink_to(tmp_path / "data")

    def refusing(path: str, flags: int) -> int:
        if "/up/" in path:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
        return os.open(path, flags)

    monkeypatch.setattr("packer_cli.corpus.unchanged.os", SimpleNamespace(**vars(os) | {"open": refusing}))
    monkeypatch.chdir(tmp_path)
    assert paths("data/**/*.jsonl") == ["data/a/c.jsonl"]


LOOPS = {
    "to itself, twice": {"up": ".", "again": "."},
    "to its folder, and to that above": {"a/up": "..", "a/b/up": "../.."},
    "to each other": {"a/other": "../z", "z/other": "../a", "z/up": ".."},
    "by an absolute path": {"a/root": "ROOT", "a/b/root": "ROOT", "z/root": "ROOT"},
    "of a link alone": {"a/self": "self", "left": "right", "right": "left", "a/b/gone": "nowhere"},
}


@pytest.mark.parametrize("links", LOOPS.values(), ids=LOOPS)
def test_loops_of_links_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, links: dict[str, str]) -> None:
    """Each file comes once, by its shortest path, as soon as there are more paths to it than anyone could list."""
    files = ["data/a/b/2.jsonl", "data/a/1.jsonl", "data/top.jsonl", "data/z/3.jsonl"]
    for name in files:
        write_jsonl(tmp_path / name, [TEXT])
    for name, to in links.items():
        (tmp_path / "data" / name).symlink_to(str(tmp_path / "data") if to == "ROOT" else to)
    monkeypatch.chdir(tmp_path)
    for pattern in (
        "data/**/*.jsonl",
        "data/**",
        "da*/**/*.json*",
        f"{tmp_path}/data/**/*.jsonl",
        "data/**/**/*.jsonl",
    ):
        assert sorted(os.path.relpath(path) for path in paths(pattern)) == sorted(files), pattern
    assert sorted(map(os.path.realpath, paths("data"))) == sorted(map(os.path.realpath, files))
    assert paths("data/**/b/**/2.*") == ["data/a/b/2.jsonl"]
    monkeypatch.chdir("data")
    assert sorted(paths("**/*.jsonl")) == sorted(name.removeprefix("data/") for name in files)


def test_a_pattern_of_all_depths_matches_what_glob_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (
        "x.jsonl",
        "a/x.jsonl",
        "a/b/x.jsonl",
        "a/b/c[1]/x.jsonl",
        ".hidden/x.jsonl",
        "a/.h.jsonl",
        "b/a/x.jsonl",
    ):
        write_jsonl(tmp_path / "r" / name, [TEXT])
    monkeypatch.chdir(tmp_path)
    for pattern in (
        "r/**/x.jsonl",
        "r/**",
        "**/x.jsonl",
        "r/*/**/x.*",
        "r/**/b/**",
        "r/**/a/*.jsonl",
        "r/**/c[[]1]/*",
        "**",
    ):
        assert paths(pattern) == sorted(filter(os.path.isfile, glob.glob(pattern, recursive=True))), pattern


def test_a_link_that_is_not_read_hides_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its name is shorter, and of no known suffix, or in a folder of what a writer left."""
    write_jsonl(tmp_path / "p/long-name.jsonl", [TEXT])
    (tmp_path / "p/x.dat").symlink_to(tmp_path / "p/long-name.jsonl")
    write_jsonl(tmp_path / "q/data/part-00000.jsonl", [TEXT])
    (tmp_path / "q/_tmp").mkdir()
    (tmp_path / "q/_tmp/a.jsonl").symlink_to(tmp_path / "q/data/part-00000.jsonl")
    monkeypatch.chdir(tmp_path)
    assert paths("p/*") == paths("p") == ["p/long-name.jsonl"]
    assert paths("q/*/*") == paths("q") == ["q/data/part-00000.jsonl"]


def test_a_tokenizer_among_the_data_is_passed_over(repo: Path, tmp_path: Path) -> None:
    sample = repo / "examples/sample"
    assert paths(sample) == [str(sample / "chats.jsonl"), str(sample / "journals.jsonl")]
    for name in ("config.json", "generation_config.json", "vocab.json", "merges.txt", "package.json"):
        (tmp_path / name).write_text('{\n  "a": 1\n}')
    lines = write_jsonl(tmp_path / "lines.json", [TEXT])
    assert paths(tmp_path) == paths(tmp_path / "*") == [str(lines)]
    assert error(tmp_path / "config.json").startswith(f"{tmp_path / 'config.json'}: holds one JSON object")


def test_formats_by_suffix(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "lines.json", [TEXT])
    (tmp_path / "array.json").write_text("\n [{}]")
    (tmp_path / "array.json.gz").write_bytes(gzip.compress(b"\xef\xbb\xbf[]"))
    (tmp_path / "UPPER.JSONL").write_text("{}")
    (tmp_path / "book.txt.zst").write_text("x")
    found = {os.path.basename(f.path): (f.format, f.compression) for f in discover([str(tmp_path)])[1]}
    assert found == {
        "lines.json": ("jsonl", "none"),
        "array.json": ("json", "none"),
        "array.json.gz": ("json", "gzip"),
        "UPPER.JSONL": ("jsonl", "none"),
        "book.txt.zst": ("text", "zstd"),
    }


def test_fingerprints_are_of_the_content(tmp_path: Path) -> None:
    import xxhash

    a, b = write_jsonl(tmp_path / "a.jsonl", [TEXT] * 99), write_jsonl(tmp_path / "b.jsonl", [TEXT] * 99)
    slices = slice_corpus(discover([str(a), str(b)])[1])
    expected = xxhash.xxh3_128_hexdigest(a.read_bytes())
    assert [slice_.file.fingerprint for slice_ in slices] == [expected, expected]


def test_missing_paths(tmp_path: Path) -> None:
    missing = "no such file or directory, and not a Hugging Face data set name either; check the name"
    for name in (tmp_path / "a.jsonl", tmp_path / "folder", "data.jsonl", "./data", "a b"):
        assert error(name) == f"{name}: {missing}"
    assert error(tmp_path / "*.jsonl") == f"{tmp_path}/*.jsonl: no data file matches this pattern; {KNOWN}"
    assert error(tmp_path) == f"{tmp_path}: no data files in this folder; {KNOWN}"
    assert error("memory://a/c.jsonl") == "memory://a/c.jsonl: no such file or folder; check the address"


def test_unknown_suffixes_and_kinds(tmp_path: Path) -> None:
    for name, what in (
        ("a.csv", 'unknown suffix ".csv"'),
        ("a", "no suffix, and neither JSON lines nor Parquet or Arrow"),
        ("a.parquet.gz", 'unknown suffix ".gz"'),
    ):
        (tmp_path / name).write_text("x")
        assert error(tmp_path / name) == f"{tmp_path / name}: {what}; {KNOWN}"
    os.mkfifo(tmp_path / "a.jsonl")
    assert error(tmp_path / "a.jsonl").endswith("not a regular file; write the data to a file first")


def test_one_object_over_many_lines(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text('{\n  "data": []\n}')
    assert error(path) == (
        f"{path}: holds one JSON object over several lines; hbpack reads an array of records, or one record a line; "
        "write it so, or leave the file out"
    )


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("a.parquet", "..."),
        ("a.arrow", "not an Arrow IPC file or stream (...)"),
        ("a.jsonl.gz", "not a .gz file: compressed data is corrupt (incorrect header check)"),
        ("a.jsonl.zst", "not a .zst file: compressed data is corrupt (Unknown frame descriptor)"),
    ],
)
def test_files_that_are_not_what_they_say(tmp_path: Path, name: str, reason: str) -> None:
    """`...` stands for the words of a library."""
    (tmp_path / name).write_bytes(b"this is plain text, as anyone can see")
    whole = f"{tmp_path / name}: cannot be read: {reason}; correct it, or leave it out"
    assert re.fullmatch(re.escape(whole).replace(re.escape("..."), ".+"), error(tmp_path / name))


def test_a_vanished_file(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", [TEXT])
    files = discover([str(path)])[1]
    path.unlink()
    with pytest.raises(InputError) as caught:
        slice_corpus(files)
    assert str(caught.value) == f"{path}: cannot be read: No such file or directory; correct it, or leave it out"


def test_unknown_data_set_names_fail_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets
    from huggingface_hub import constants

    from packer_cli.corpus.readers import hf

    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", "https://127.0.0.1:9")
    for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    hf._hub_answers.cache_clear()
    begin = time.monotonic()
    text = error("no-owner/no-such-set:train")
    assert time.monotonic() - begin < 10
    assert text == (
        "no-owner/no-such-set:train: no such file or directory, and not a Hugging Face data set that can be loaded "
        "(the Hub cannot be reached, and the cache does not hold it); check the name"
    )
    assert datasets.config.HF_HUB_OFFLINE is False
    hf._hub_answers.cache_clear()


def test_split_errors(tmp_path: Path) -> None:
    import datasets

    datasets.disable_progress_bars()
    one = datasets.Dataset.from_list([TEXT])
    datasets.DatasetDict({"a": one, "b": one}).save_to_disk(str(tmp_path / "set"))
    one.save_to_disk(str(tmp_path / "one"))
    where = tmp_path / "set"
    assert error(where) == f"{where}: say which split, as {where}:SPLIT; the data set has a, b"
    assert error(f"{where}:c") == f"{where}:c: no such split; the data set has a, b"
    assert error(f"{tmp_path}/one:a") == f"{tmp_path}/one:a: this saved data set has no splits; leave out :a"


def test_types_are_free() -> None:
    code = (
        "import sys, packer_cli.corpus.types\n"
        "heavy = {'pyarrow', 'datasets', 'orjson', 'backports', 'numba', 'torch', 'transformers'}\n"
        "assert 'numpy' not in sys.modules\n"
        "import packer_cli.corpus.discover, packer_cli.corpus.records.shapes, packer_cli.corpus.read\n"
        "sys.exit(' '.join(sorted(heavy & set(sys.modules))) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
