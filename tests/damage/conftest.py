"""A small set of every kind of file, here and behind URLs, and the command line in this process."""

from __future__ import annotations

import fnmatch
import itertools
import json
import posixpath
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from packer_cli.cli.main import main
from packer_cli.remote.path import RemotePath
from tests.cli_runner import Done, run
from tests.reference import home
from tests.remote.conftest import bucket, running, s3, tree, upload  # noqa: F401 - fixtures of the S3 server


class Packed(NamedTuple):
    folder: Any
    """A `Path` or a `RemotePath`."""
    words: list[object]
    """The command that writes it, but for --output."""
    version: str
    """Name of the only version's folder."""

    @property
    def home(self) -> Any:
        """The folder of the version."""
        return self.folder / self.version


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
    return Packed(folder, words, home(folder).name)


@pytest.fixture
def own(packed: Packed, tmp_path: Path) -> Packed:
    """A copy of it to do harm to."""
    return packed._replace(folder=Path(shutil.copytree(packed.folder, tmp_path / "out", symlinks=True)))


_numbers = itertools.count()


@pytest.fixture(params=["disk", "memory", pytest.param("s3", marks=pytest.mark.soak)])
def put(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], Any]:
    """Copies a folder to where it is to be harmed: on disk, or behind a URL."""
    if request.param == "disk":
        return lambda folder: Path(shutil.copytree(folder, tmp_path / "put", symlinks=True))
    root = request.getfixturevalue("bucket") if request.param == "s3" else RemotePath("memory://damage")
    monkeypatch.setenv("HBPACK_CACHE", str(tmp_path / "cache"))

    def put(folder: Path) -> Any:
        remote = root / str(next(_numbers))
        upload(folder, remote)
        return remote

    return put


@pytest.fixture
def anywhere(packed: Packed, put: Callable[[Path], Any]) -> Packed:
    """A copy of it to do harm to, in each of these places."""
    return packed._replace(folder=put(packed.folder))


@pytest.fixture(scope="session")
def kinds() -> Callable[[Any], dict[str, list[Any]]]:
    """The files of a set by their kind."""

    def find(folder: Any) -> dict[str, list[Any]]:
        patterns = {
            "manifest": "hbpack.json",
            "plan": "plan.arrow",
            "rejected": "rejected.jsonl",
            "manifest of the version": "*/hbpack.json",
            "plan of the version": "*/plan.arrow",
            "rejected of the version": "*/rejected.jsonl",
            "index of the version": "*/store.json",
            "shards": "*/shards/*/*.arrow",
            "ranks": "*/ranks/epoch-*/*.arrow",
            "rebalanced ranks": "*/ranks/rebalanced-*/*/*.arrow",
            "schedules": "*/ranks/rebalanced-*/schedules.arrow",
            "tokens": "tokens/part-*.arrow",
            "rejects of a part": "tokens/rejected-*.jsonl",
            "index": "tokens/tokens.json",
        }
        names = sorted(name for name in tree(folder) if not name.startswith("current/"))
        found = {kind: fnmatch.filter(names, pattern) for kind, pattern in patterns.items()}
        found["ranks"] = sorted({*found["ranks"]} - {*found["rebalanced ranks"]})
        assert sum(map(len, found.values())) == len(names)
        return {kind: [folder / name for name in chosen] for kind, chosen in found.items() if chosen}

    return find


@pytest.fixture(scope="session")
def others(packed: Packed, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A set with files of the same names and other contents."""
    folder = tmp_path_factory.mktemp("others") / "out"
    assert hbpack(*packed.words, "--seed", 5, "--loss-on", "all", "--output", folder).code == 0
    return folder


def names_damage(own: Packed, name: str, damaged: str) -> bool:
    """Whether a file of a report is the file `name` of the set, or the folder that holds it.

    A report names files from the version's folder, but those of the token store from the set's, and so its manifest
    if that does not tell the version.
    """
    path = posixpath.normpath(f"{own.version}/{damaged}")
    is_of_set = name == "hbpack.json" or name.startswith("tokens/")
    return path == name or name.startswith(f"{path}/") or (is_of_set and name == damaged)
