"""Single-bit flips in every kind of file of a set: none reaches a batch, `verify` finds all, a rerun repairs all."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("packer_cli.loader", exc_type=ImportError)

from packer_cli.engine.local import LocalEngine
from packer_cli.errors import FormatError, VersionError
from packer_cli.loader import PackedDataset
from packer_cli.verify import Report, Verifier, open_verifier
from tests.damage.conftest import Packed, hbpack
from tests.reference import tree


def flip(path: Path, number: int) -> None:
    """Flip one bit of a file, counted from its start."""
    with path.open("r+b") as file:
        file.seek(number // 8)
        byte = file.read(1)[0]
        file.seek(number // 8)
        file.write(bytes([byte ^ 1 << number % 8]))


def batches(folder: Path, num_gpus: int, epochs: range) -> Iterator[str]:
    """A digest of each batch of all ranks; one that cannot be read is left out, and so is a rank."""
    for epoch in epochs:
        for rank in range(num_gpus):
            try:
                data = PackedDataset(folder, rank, num_gpus, epoch=epoch)
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


def verify(folder: Path) -> Report:
    verifier = open_verifier(folder, LocalEngine(1))
    if not isinstance(verifier, Verifier):
        return verifier
    verifier.check_files()
    verifier.check_contents()
    return verifier.report


def attack(own: Packed, whole: dict[str, Any], paths: list[Path], flips: int, rng: random.Random, reads: Any) -> None:
    """Flip bits one at a time; then all of them at once, and repair them together."""
    good = set(reads(own.folder))
    assert len(good) > 20
    numbers = [(path, rng.randrange(8 * path.stat().st_size)) for path in rng.choices(paths, k=flips)]
    for path, number in numbers:
        flip(path, number)
        assert set(reads(own.folder)) <= good, f"bit {number} of {path} reached a batch"
        report = verify(own.folder)
        name = path.relative_to(own.folder).as_posix()
        assert any(name.startswith(damage.file) for damage in report.damaged), f"bit {number} of {path}"
        flip(path, number)
    for path, number in set(numbers):
        flip(path, number)
    repair(own)
    assert tree(own.folder) == whole


def repair(own: Packed) -> None:
    done = hbpack(*own.words, "--output", own.folder)
    assert done.code == 0, done.stderr


def two_gpus(folder: Path) -> list[str]:
    return list(batches(folder, 2, range(2)))


KINDS = ("manifest", "plan", "rejected", "shards", "ranks", "tokens", "rejects of a part", "index")


@pytest.mark.parametrize("kind", KINDS)
def test_flips(own: Packed, packed: Packed, kinds: Callable[[Path], dict[str, list[Path]]], kind: str) -> None:
    paths = kinds(own.folder)
    assert set(paths) == set(KINDS)
    attack(own, tree(packed.folder), paths[kind], 4, random.Random(kind), two_gpus)
    assert verify(own.folder).is_sound


@pytest.mark.soak
@pytest.mark.parametrize("kind", KINDS)
def test_every_byte(repo: Path, tmp_path: Path, kinds: Callable[[Path], dict[str, list[Path]]], kind: str) -> None:
    """A change of any byte of any file of a set of a few packs is found, and changes no batch."""
    sample = repo / "examples" / "sample"
    chats = (sample / "chats.jsonl").read_text(encoding="utf-8").splitlines()[:6]
    (tmp_path / "chats.jsonl").write_text("\n".join([*chats, "broken"]), encoding="utf-8")
    folder = tmp_path / "out"
    options = ["--tokenizer", sample / "tokenizer", "--groups", "512", "--gpus", 2, "--output", folder]
    assert hbpack("pack", tmp_path / "chats.jsonl", *options, "--workers", 1).code == 0

    def reads() -> set[str]:
        return set(batches(folder, 2, range(1)))

    good, rng = reads(), random.Random(kind)
    assert good
    for path in kinds(folder)[kind]:
        name = path.relative_to(folder).as_posix()
        whole = path.read_bytes()
        for place in range(len(whole)):
            with path.open("r+b") as file:
                file.seek(place)
                file.write(bytes([whole[place] ^ rng.randrange(1, 256)]))
            assert reads() <= good, f"byte {place} of {name} reached a batch"
            with suppress(VersionError):  # Another digit: no command reads the set.
                report = verify(folder)
                assert any(name.startswith(damage.file) for damage in report.damaged), f"byte {place} of {name}"
            path.write_bytes(whole)
    assert verify(folder).is_sound
    assert reads() == good


@pytest.mark.soak
@pytest.mark.parametrize("kind", [*KINDS, "rebalanced ranks", "schedules"])
def test_a_thousand_flips(own: Packed, kinds: Callable[[Path], dict[str, list[Path]]], kind: str) -> None:
    """Each is repaired by itself too. A set that was dealt to other GPUs has files of every kind."""
    assert hbpack("rebalance", own.folder, "--gpus", 4, "--from-step", 3).code == 0
    whole = tree(own.folder)
    rng = random.Random(f"soak {kind}")

    def reads(folder: Path) -> list[str]:
        return list(batches(folder, 4, range(2)))

    good = set(reads(own.folder))
    for _ in range(100):
        path = rng.choice(kinds(own.folder)[kind])
        number = rng.randrange(8 * path.stat().st_size)
        flip(path, number)
        assert set(reads(own.folder)) <= good, f"bit {number} of {path} reached a batch"
        name = path.relative_to(own.folder).as_posix()
        report = verify(own.folder)
        assert any(name.startswith(damage.file) for damage in report.damaged), f"bit {number} of {path}"
        repair(own)
        if kind in ("manifest", "schedules"):  # What only these say is gone: the set is as it was planned.
            assert hbpack("rebalance", own.folder, "--gpus", 4, "--from-step", 3).code == 0
        assert tree(own.folder) == whole, f"bit {number} of {path}"
