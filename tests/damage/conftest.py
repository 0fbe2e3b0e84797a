"""A small set of every kind of file, and the command line in this process."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from packer_cli.cli.main import main
from tests.cli_runner import Done, run


class Packed(NamedTuple):
    folder: Path
    words: list[object]
    """The command that writes it, but for --output."""


def hbpack(*arguments: object) -> Done:
    """`hbpack ARGUMENTS`, as a process of its own would run."""
    return run(main, *arguments)


@pytest.fixture(scope="session")
def packed(repo: Path, tmp_path_factory: pytest.TempPathFactory) -> Packed:
    """Two groups, two epochs, records left out by their text and their length."""
    sample = repo / "examples" / "sample"
    inputs = tmp_path_factory.mktemp("inputs")
    lines = (sample / "chats.jsonl").read_text(encoding="utf-8").splitlines()
    for number, name in enumerate(("a", "b")):
        chosen = lines[100 * number : 100 * (number + 1)]
        (inputs / f"{name}.jsonl").write_text("\n".join([*chosen, "broken", json.dumps({"other": 1})]), "utf-8")
    words = ["pack", inputs / "a.jsonl", inputs / "b.jsonl", "--tokenizer", sample / "tokenizer", "--workers", 1]
    words += ["--groups", "128,512:2", "--gpus", 2, "--epochs", 2, "--overflow", "drop", "--shard-size", "65536"]
    folder = tmp_path_factory.mktemp("packed") / "out"
    assert hbpack(*words, "--output", folder).code == 0
    return Packed(folder, words)


@pytest.fixture
def own(packed: Packed, tmp_path: Path) -> Packed:
    """A copy of it to do harm to."""
    return Packed(Path(shutil.copytree(packed.folder, tmp_path / "out")), packed.words)


@pytest.fixture(scope="session")
def kinds() -> Callable[[Path], dict[str, list[Path]]]:
    """The files of a set by their kind."""

    def find(folder: Path) -> dict[str, list[Path]]:
        patterns = {
            "manifest": "hbpack.json",
            "plan": "plan.arrow",
            "rejected": "rejected.jsonl",
            "shards": "shards/*/*.arrow",
            "ranks": "ranks/epoch-*/*.arrow",
            "rebalanced ranks": "ranks/rebalanced-*/*/*.arrow",
            "schedules": "ranks/rebalanced-*/schedules.arrow",
            "tokens": "tokens/part-*.arrow",
            "rejects of a part": "tokens/rejected-*.jsonl",
            "index": "tokens/tokens.json",
        }
        found = {kind: sorted(folder.glob(pattern)) for kind, pattern in patterns.items()}
        assert sum(map(len, found.values())) == sum(path.is_file() for path in folder.rglob("*"))
        return {kind: paths for kind, paths in found.items() if paths}

    return find


@pytest.fixture(scope="session")
def others(packed: Packed, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A set with files of the same names and other contents."""
    folder = tmp_path_factory.mktemp("others") / "out"
    assert hbpack(*packed.words, "--seed", 5, "--loss-on", "all", "--output", folder).code == 0
    return folder
