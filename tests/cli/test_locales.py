"""Names of files in any locale, and such that are not UTF-8: they are read, or refused in one line."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.cli_runner import HBPACK

ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
"""Without them, Python takes names in the C locale as UTF-8."""


class Ended(NamedTuple):
    code: int
    stdout: str
    stderr: str


def hbpack(*words: object, cwd: Path, **environment: str) -> Ended:
    env = {name: value for name, value in os.environ.items() if name not in ASCII} | environment
    done = subprocess.run([*HBPACK, *map(os.fsencode, map(str, words))], capture_output=True, env=env, cwd=cwd)
    ended = Ended(done.returncode, done.stdout.decode(), done.stderr.decode())
    assert "Traceback" not in ended.stderr
    return ended


def test_names_in_the_c_locale(lines_of, tokenizer: Path, tmp_path: Path) -> None:
    lines_of({"text": "na\u00efve"}, {"\u00e9": 1}, name="donn\u00e9es.jsonl")
    shutil.copytree(tokenizer, tmp_path / "W\u00f6rter")
    words = ("--tokenizer", "W\u00f6rter", "--groups", "1k", "--gpus", "1", "--workers", "1")
    done = hbpack("pack", "donn\u00e9es.jsonl", *words, "--output", "Ausg\u00e4nge", cwd=tmp_path, **ASCII)
    assert done.code == 0, done.stderr
    assert "donn\u00e9es.jsonl:2" in done.stderr
    assert done.stdout.count("\u2500\u2500") > 0
    usual = hbpack("pack", "donn\u00e9es.jsonl", *words, "--output", "as-usual", cwd=tmp_path)
    for path in (tmp_path / "as-usual").rglob("*"):
        if path.is_file() and path.name not in ("hbpack.json", "versions.jsonl"):  # With the time.
            assert (
                tmp_path / "Ausg\u00e4nge" / path.relative_to(tmp_path / "as-usual")
            ).read_bytes() == path.read_bytes()
    assert usual.code == 0


BAD = "caf\udce9"
"""As Python has a name in Latin-1."""


SLOW = [pytest.param(place, marks=pytest.mark.slow) for place in ("folder", "output", "tokenizer", "config", "set")]


@pytest.mark.parametrize("environment", [{}, pytest.param(ASCII, marks=pytest.mark.slow)], ids=["usual", "C"])
@pytest.mark.parametrize("place", ["input", "cwd", *SLOW])
def test_a_name_that_is_not_utf8_is_refused_in_one_line(lines_of, tokenizer, tmp_path, place, environment) -> None:
    (tmp_path / "data").mkdir()
    data = lines_of({"text": "x"}, name=f"data/{BAD}.jsonl" if place in ("input", "folder") else "data/a.jsonl")
    words = {"--tokenizer": str(tokenizer), "--groups": "1k", "--gpus": "1", "--workers": "1", "--output": "out"}
    cwd = tmp_path
    if place == "output":
        words["--output"] = BAD
    elif place == "tokenizer":
        shutil.copytree(tokenizer, tmp_path / BAD)
        words["--tokenizer"] = BAD
    elif place == "config":
        (tmp_path / f"{BAD}.yaml").write_text("gpus: 1")
        words["--config"] = f"{BAD}.yaml"
    elif place == "cwd":
        cwd = tmp_path / BAD
        cwd.mkdir()
        (cwd / "a.jsonl").write_text('{"text": "x"}')
        data = Path("a.jsonl")
    if place == "set":
        done = hbpack("stats", BAD, cwd=cwd, **environment)
    else:
        given = data.parent if place == "folder" else data
        done = hbpack("pack", given, *(word for pair in words.items() for word in pair), cwd=cwd, **environment)
    if done.code:
        assert done.stderr.splitlines()[-1].startswith("error: ")
        assert "\\udce9" in done.stderr
