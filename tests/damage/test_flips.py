"""Single-bit flips in every kind of file of a set: none reaches a batch, `verify` finds all, a rerun repairs all."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

pytest.importorskip("packer_cli.loader", exc_type=ImportError)

from packer_cli.commands.verify import verify as check_set
from packer_cli.errors import FormatError, VersionError
from packer_cli.loader import PackedDataset
from packer_cli.verify.verifier import Verified
from tests.damage.conftest import Packed, hbpack, names_damage
from tests.reference import home
from tests.remote.conftest import tree


def flip(path: Any, number: int) -> None:
    """Flip one bit of a file, counted from its start."""
    change(path, number // 8, 1 << number % 8)


def change(path: Any, place: int, bits: int) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= bits
    path.write_bytes(data if isinstance(path, Path) else bytes(data))


def batches(folder: Any, num_gpus: int, epochs: range) -> Iterator[str]:
    """A digest of each batch of all ranks; one that cannot be read is left out, and so is a rank.

    Nothing that was read of a remote set before is in its cache.
    """
    with TemporaryDirectory() as cache:
        for epoch in epochs:
            for rank in range(num_gpus):
                try:
                    data = PackedDataset(str(folder), rank, num_gpus, epoch=epoch, cache_dir=cache)
                except FormatError:
                    continue
                for i in range(len(data)):
                    try:
                        batch: dict[str, Any] = data[i]
                    except FormatError:
                        continue
                    text = repr(
                        [(key, value.tolist() if hasattr(value, "tolist") else value) for key, value in batch.items()]
                    )
                    yield f"{epoch} {rank} {i} {hashlib.sha1(text.encode()).hexdigest()}"
                data.close()


def verify(folder: Any) -> Verified:
    return check_set(str(folder), workers=1)


def is_found(own: Packed, kind: str, path: Any) -> bool:
    """Whether `verify` names a file that is harmed. The last plan is no part of the version, which has its own."""
    report = verify(own.folder)
    if kind in OF_LAST_PLAN:
        return report.sound
    name = path.relative_to(own.folder).as_posix()
    return any(names_damage(own, name, damage.file) for damage in report.damaged)


def attack(
    own: Packed, whole: dict[str, bytes], kind: str, paths: list[Any], flips: int, reads: Callable[[Any], list[str]]
) -> None:
    """Flip bits one at a time; then all of them at once, and repair them together."""
    rng = random.Random(kind)
    good = set(reads(own.folder))
    assert len(good) > 20
    numbers = [(path, rng.randrange(8 * path.stat().st_size)) for path in rng.choices(paths, k=flips)]
    for path, number in numbers:
        flip(path, number)
        assert set(reads(own.folder)) <= good, f"bit {number} of {path} reached a batch"
        assert is_found(own, kind, path), f"bit {number} of {path}"
        flip(path, number)
    for path, number in set(numbers):
        flip(path, number)
    repair(own, kind, paths)
    assert tree(own.folder) == whole


REPAIRABLE = ("shards", "ranks", "rebalanced ranks", "index of the version")
"""What `hbpack verify --repair` writes again; the rest is made by the command that made it before."""


def repair(own: Packed, kind: str, paths: list[Any]) -> None:
    """As the report says."""
    if kind in ("tokens", "rejects of a part") and not isinstance(own.folder, Path):
        for path in paths:
            path.unlink()
    words = ["verify", own.folder, "--repair", "--workers", 1]
    done = hbpack(*words) if kind in REPAIRABLE else hbpack(*own.words, "--output", own.folder)
    assert done.code == 0, done.stderr


def two_gpus(folder: Any) -> list[str]:
    return list(batches(folder, 2, range(2)))


OF_LAST_PLAN = ("plan", "rejected")
OF_VERSION = ("manifest of the version", "plan of the version", "rejected of the version", "index of the version")
KINDS = ("manifest", *OF_LAST_PLAN, *OF_VERSION, "shards", "ranks", "tokens", "rejects of a part", "index")


@pytest.mark.parametrize("kind", KINDS)
def test_flips(anywhere: Packed, packed: Packed, kinds: Callable[[Any], dict[str, list[Any]]], kind: str) -> None:
    paths = kinds(anywhere.folder)
    assert set(paths) == set(KINDS)
    flips = 4 if kind in OF_LAST_PLAN else 2  # A plan has bytes that only pad, whose flips nobody sees.
    attack(anywhere, tree(packed.folder), kind, paths[kind], flips, two_gpus)
    assert verify(anywhere.folder).sound


@pytest.mark.soak
@pytest.mark.parametrize("kind", KINDS)
def test_every_byte(
    repo: Path,
    tmp_path: Path,
    put: Callable[[Path], Any],
    kinds: Callable[[Any], dict[str, list[Any]]],
    kind: str,
    request: pytest.FixtureRequest,
) -> None:
    """A change of any byte of any file of a set of a few packs is found, and changes no batch; on S3, of a few."""
    sample = repo / "examples" / "sample"
    chats = (sample / "chats.jsonl").read_text(encoding="utf-8").splitlines()[:6]
    (tmp_path / "chats.jsonl").write_text("\n".join([*chats, "broken"]), encoding="utf-8")
    folder = tmp_path / "out"
    options = ["--tokenizer", sample / "tokenizer", "--groups", "512", "--gpus", 2, "--output", folder]
    assert hbpack("pack", tmp_path / "chats.jsonl", *options, "--workers", 1).code == 0
    own = Packed(put(folder), [], home(folder).name)
    folder = own.folder
    share = 20 if "s3" in request.node.callspec.id else None

    def reads() -> set[str]:
        return set(batches(folder, 2, range(1)))

    good, rng = reads(), random.Random(kind)
    assert good
    for path in kinds(folder)[kind]:
        name = path.relative_to(folder).as_posix()
        whole = path.read_bytes()
        for place in sorted(rng.sample(range(len(whole)), min(len(whole), share or len(whole)))):
            change(path, place, rng.randrange(1, 256))
            assert reads() <= good, f"byte {place} of {name} reached a batch"
            with suppress(VersionError):  # Another digit: no command reads the set.
                assert is_found(own, kind, path), f"byte {place} of {name}"
            path.write_bytes(whole)
    assert verify(folder).sound
    assert reads() == good


@pytest.mark.soak
@pytest.mark.parametrize("kind", [*KINDS, "rebalanced ranks", "schedules"])
def test_fifty_flips(anywhere: Packed, kinds: Callable[[Any], dict[str, list[Any]]], kind: str) -> None:
    """Each is repaired by itself too. A set that was dealt to other GPUs has files of every kind."""
    assert hbpack("rebalance", anywhere.folder, "--gpus", 4, "--from-step", 3).code == 0
    whole = tree(anywhere.folder)
    rng = random.Random(f"soak {kind}")

    def reads(folder: Any) -> list[str]:
        return list(batches(folder, 4, range(2)))

    good = set(reads(anywhere.folder))
    for _ in range(50):
        path = rng.choice(kinds(anywhere.folder)[kind])
        number = rng.randrange(8 * path.stat().st_size)
        flip(path, number)
        assert set(reads(anywhere.folder)) <= good, f"bit {number} of {path} reached a batch"
        assert is_found(anywhere, kind, path), f"bit {number} of {path}"
        repair(anywhere, kind, [path])
        # What only these say is gone: the set is as it was planned.
        if kind in ("manifest of the version", "schedules"):
            assert hbpack("rebalance", anywhere.folder, "--gpus", 4, "--from-step", 3).code == 0
        assert tree(anywhere.folder) == whole, f"bit {number} of {path}"
