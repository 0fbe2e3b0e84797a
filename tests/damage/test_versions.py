"""Sets, token stores and unfinished runs of another format version: refused in one line, never continued."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from packer_cli.errors import VersionError
from packer_cli.format.checksums import sign_json
from packer_cli.format.constants import FORMAT_VERSION
from packer_cli.tokens.index import STORE_VERSION
from packer_cli.version import __version__
from tests.damage.conftest import Packed, hbpack
from tests.reference import current_tree, home, store_parts, tree


def set_version(path: Path, version: int) -> None:
    value = json.loads(path.read_bytes())
    del value["xxh3"]
    path.write_bytes(sign_json({**value, "format_version": version}))


@pytest.fixture
def earlier(own: Packed) -> Path:
    for folder in (own.folder, own.home):
        set_version(folder / "hbpack.json", 1)
    set_version(own.folder / "tokens" / "tokens.json", 2)
    return own.folder


def of_set(folder: Path) -> str:
    return (
        f"{str(home(folder) / 'hbpack.json')!r} has format version 1; hbpack {__version__} reads version "
        f"{FORMAT_VERSION}; run hbpack pack again, or read the set with the release that wrote it"
    )


def of_store(folder: Path) -> str:
    return (
        f"{str(folder / 'tokens' / 'tokens.json')!r} has format hbpack-tokens version 2; hbpack {__version__} reads "
        f"hbpack-tokens version {STORE_VERSION}; run hbpack pack or hbpack tokenize again"
    )


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (["stats", "OUT"], "set"),
        (["show", "OUT"], "set"),
        (["export", "OUT", "--to", "trl", "--output", "NEW"], "set"),
        (["verify", "OUT"], "set"),
        (["verify", "OUT", "--json"], "set"),
        (["rebalance", "OUT", "--gpus", 4], "set"),
        (["write", "OUT"], "store"),
        (["plan", "OUT", "--groups", "128,512:2", "--gpus", 2], "store"),
        (["stats", "OUT/tokens"], "store"),
    ],
)
def test_a_set_of_an_earlier_version_is_refused(earlier, tmp_path, words, name):
    before = tree(earlier)
    places = {"OUT": earlier, "NEW": tmp_path / "new", "OUT/tokens": earlier / "tokens"}
    done = hbpack(*(places.get(word, word) for word in words))
    wanted = of_set(earlier) if name == "set" else of_store(earlier)
    assert (done.code, done.stderr) == (1, f"error: {wanted}\n")
    assert (json.loads(done.stdout)["error"]["message"] if "--json" in words else done.stdout) in (wanted, "")
    assert tree(earlier) == before
    assert not places["NEW"].exists()


def test_the_loader_refuses_it(earlier):
    loader = pytest.importorskip("packer_cli.loader")
    for verify in ("lazy", "none"):
        with pytest.raises(VersionError) as error:
            loader.PackedDataset(earlier, 0, 2, verify=verify)
        assert str(error.value) == of_set(earlier)


def test_packing_again_is_the_remedy(packed, earlier):
    assert hbpack(*packed.words, "--output", earlier).code == 0
    assert tree(earlier) == tree(packed.folder)


@pytest.mark.parametrize("is_earlier", [True, False], ids=["of an earlier version", "of this version"])
def test_a_killed_run_is_continued_by_its_own_version_alone(packed, tmp_path, monkeypatch, is_earlier):
    out = tmp_path / "out"
    with monkeypatch.context() as patch:
        patch.setattr(
            "packer_cli.engine.output.remove_work", lambda work: None
        )  # The markers stay, as those of a run that is killed.
        if is_earlier:
            patch.setattr("packer_cli.tokens.part.STORE_VERSION", STORE_VERSION - 1)
            patch.setattr("packer_cli.shards.manifest.FORMAT_VERSION", FORMAT_VERSION - 1)
        assert hbpack(*packed.words, "--output", out).code == 0
    own = home(out)
    for path in (own / "hbpack.json", out / "hbpack.json", out / "versions.jsonl", out / "current"):
        path.unlink()
    (out / "tokens" / "tokens.json").unlink()
    parts = [*out.glob("tokens/part-*.arrow"), *own.glob("shards/*/*.arrow")]
    written = {path: path.stat().st_ino for path in parts}
    assert hbpack(*packed.words, "--output", out).code == 0
    there = {*store_parts(out), *home(out).glob("shards/*/*.arrow")}
    kept = [path for path, inode in written.items() if path in there and path.stat().st_ino == inode]
    assert kept == ([] if is_earlier else parts)
    assert current_tree(out) == current_tree(packed.folder)
