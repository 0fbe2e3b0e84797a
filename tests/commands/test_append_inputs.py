"""`hbpack append` and the inputs that the set was packed from: found again, compared, and never replaced."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from packer_cli.cli.main import main
from packer_cli.commands.append import GONE_REMEDY, REMEDY
from tests.cli_runner import run
from tests.reference import current_tree, tree


@pytest.fixture
def lines(repo) -> list[str]:
    return (repo / "examples" / "sample" / "chats.jsonl").read_text().splitlines(keepends=True)


@pytest.fixture
def data(repo, lines, tmp_path, monkeypatch) -> Path:
    """A folder of two files, one file beside it, more of them to append; the current folder is above."""
    for name, part in {
        "data/a": lines[:40],
        "data/b": lines[40:80],
        "c": lines[80:120],
        "new": lines[120:160],
    }.items():
        path = tmp_path / "home" / f"{name}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(part))
    shutil.copytree(repo / "examples" / "sample" / "tokenizer", tmp_path / "tokenizer")
    monkeypatch.chdir(tmp_path / "home")
    return tmp_path / "home"


def packed(output: Path, *inputs: str) -> Path:
    done = run(
        main, "pack", *inputs, "--tokenizer", output.parent / "tokenizer", "--groups", "1k:1", "--gpus", 4,
        "--workers", 1, "--output", output,
    )  # fmt: skip
    assert done.code == 0, done.stderr
    return output


def appended(out: Path, *words: object):
    return run(main, "append", out, *words, "--workers", 1)


@pytest.fixture
def out(data) -> Path:
    return packed(data.parent / "out", "data", "c.jsonl")


def test_relative_names_mean_the_files_that_were_packed(out, data, lines, tmp_path, monkeypatch):
    """From another folder, in which they name other files."""
    (tmp_path / "other" / "data").mkdir(parents=True)
    for name in ("data/a", "data/b", "c"):
        (tmp_path / "other" / f"{name}.jsonl").write_text("".join(lines[-40:]))
    monkeypatch.chdir(tmp_path / "other")
    done = appended(out, data / "new.jsonl")
    assert done.code == 0, done.stderr
    monkeypatch.chdir(data)
    assert current_tree(out) == current_tree(packed(tmp_path / "all", "data", "c.jsonl", str(data / "new.jsonl")))


def rotate(data: Path) -> str:
    (data / "c.jsonl").write_text((data / "new.jsonl").read_text())
    return "c.jsonl: has changed since it was packed"


def swap(data: Path) -> str:
    for old, new in (("a", "z"), ("b", "a"), ("z", "b")):
        (data / "data" / f"{old}.jsonl").rename(data / "data" / f"{new}.jsonl")
    return "data/a.jsonl: has changed since it was packed"


@pytest.mark.parametrize("change", [rotate, swap])
def test_an_input_of_the_set_that_has_changed_is_refused(out, data, change):
    before = tree(out)
    why = change(data)
    done = appended(out, "new.jsonl")
    assert (done.code, done.stderr) == (2, f"error: {why}; {REMEDY}\n")
    assert tree(out) == before
    done = appended(out, "c.jsonl")
    assert done.code == 2
    assert tree(out) == before


def test_other_names_of_a_file_of_the_set(out, data):
    os.symlink(data / "data" / "a.jsonl", data / "link.jsonl")
    os.link(data / "data" / "b.jsonl", data / "hard.jsonl")
    (data / "dump").mkdir()
    shutil.copy(data / "c.jsonl", data / "dump" / "copy.jsonl")
    shutil.copy(data / "new.jsonl", data / "dump" / "new.jsonl")
    before = tree(out)
    for name, why in {
        "c.jsonl@2": "c.jsonl is in the set already",
        f"{data / 'c.jsonl'}@2": f"{data / 'c.jsonl'} is in the set already, as c.jsonl",
        "link.jsonl": "link.jsonl is in the set already, as data/a.jsonl",
        "hard.jsonl": "hard.jsonl is in the set already, as data/b.jsonl",
        "dump": "dump/copy.jsonl is in the set already, as c.jsonl",
        "data/b.jsonl": "data/b.jsonl is in the set already",
        "data/*.jsonl": "data/a.jsonl is in the set already",
    }.items():
        done = appended(out, name)
        assert (done.code, done.stderr) == (2, f"error: {why}; leave it out\n")
        assert tree(out) == before
    for name in ("./data", "./c.jsonl", data / "c.jsonl"):  # Inputs, under other names.
        done = appended(out, name)
        assert done.code == 0
        assert "the set has this data already" in done.stderr
        assert tree(out) == before


@pytest.mark.parametrize("old", ["data", "home", "absolute"])
def test_inputs_that_have_moved(out, data, tmp_path, old):
    expected = {"data": "data", "home": str(data), "absolute": str(data / "data")}[old]
    moves = [f"{expected}={tmp_path / 'archive' / 'data' if old != 'home' else tmp_path / 'archive'}"]
    (tmp_path / "archive").mkdir()
    (data / "data").rename(tmp_path / "archive" / "data")
    if old == "home":
        (data / "c.jsonl").rename(tmp_path / "archive" / "c.jsonl")
    done = appended(out, "new.jsonl")
    assert done.code == 2
    assert done.stderr.endswith(f"gone since the set was packed; {GONE_REMEDY}\n")
    done = appended(out, "new.jsonl", *(word for move in moves for word in ("--moved", move)))
    assert done.code == 0, done.stderr
    c = "c.jsonl" if old != "home" else str(tmp_path / "archive" / "c.jsonl")
    assert current_tree(out) == current_tree(
        packed(tmp_path / "all", str(tmp_path / "archive" / "data"), c, "new.jsonl")
    )


def test_moves_that_cannot_be(out, data, tmp_path):
    before = tree(out)
    shutil.copytree(data / "data", tmp_path / "archive")
    (tmp_path / "archive" / "b.jsonl").write_text((data / "new.jsonl").read_text())
    for move, why in {
        "data": "--moved data: write OLD=NEW, such as --moved data=/archive/data",
        "dat=x": "--moved dat=x: the set has no input at dat; its inputs are data, c.jsonl",
        f"data={tmp_path / 'archive'}": (
            f"{tmp_path / 'archive' / 'b.jsonl'} (instead of data/b.jsonl): has changed since it was packed; {REMEDY}"
        ),
    }.items():
        done = appended(out, "new.jsonl", "--moved", move)
        assert (done.code, done.stderr) == (2, f"error: {why}\n")
        assert tree(out) == before


def test_pack_writes_what_its_options_say(out, data):
    """`hbpack write` repairs a set as it is; `hbpack pack` makes what it is asked for."""
    whole = current_tree(out)
    assert run(main, "write", out, "--index-only").code == 0
    other = current_tree(out)
    assert other != whole
    assert run(main, "write", out).code == 0
    assert current_tree(out) == other
    packed(out, "data", "c.jsonl")
    assert current_tree(out) == whole
