"""Faults of the machine: one line and the remedy; once the fault is gone, the command ends in the same bytes."""

from __future__ import annotations

import random
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from packer_cli.format.constants import VALIDATION
from tests.reference import tree

from .commands import UNSHARE, Commands
from .stages import Stage, copy

PAGE = 4096
AGAIN = "run the same command again to go on"
SOME = ("tokenize", "plan", "write", "append", "export to megatron")


@pytest.fixture(scope="module")
def apart(repo: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Commands]:
    """Commands with mounts of their own."""
    try:
        subprocess.run([*UNSHARE, "true"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no namespaces for users here ({error})")
    commands = Commands(repo, tmp_path_factory.mktemp("apart"), is_apart=True)
    yield commands
    commands.close()


@pytest.fixture(params=[*SOME, pytest.param("all of them", marks=pytest.mark.soak)])
def chosen(request: pytest.FixtureRequest, stages: list[Stage]) -> list[Stage]:
    return [stage for stage in stages if request.param in (stage.name, "all of them")]


def words_of(stage: Stage, out: Path, workers: str = "2") -> list[str]:
    return stage.words(out, *(("--workers", workers) if stage.has_workers else ()))


def error_of(commands: Commands) -> str:
    """The last line of a command that failed; there is no traceback."""
    text = commands.log.read_text()
    assert "Traceback" not in text
    assert text.count("error: ") == 1, text
    return text.splitlines()[-1]


def check_whole_files(found: dict[str, bytes], stage: Stage, *, stops_workers: bool = False) -> None:
    """Nothing is torn: what has its final name is as it was, or as it is to be.

    A worker that is stopped since another one failed leaves what it was writing, and the next run removes it.
    """
    before = tree(stage.before) if stage.before else {}
    for name, data in found.items():
        if not any(part.startswith(".") for part in Path(name).parts):
            assert data in (before.get(name), stage.expected.get(name)), name
    assert stops_workers or not [name for name in found if name.endswith(".tmp")]


def pages(sizes: Iterable[int]) -> int:
    return sum(-(-size // PAGE) for size in sizes)


def sizes_in(folder: Path) -> Iterable[int]:
    """The sizes of all files; a file of several names is one."""
    found = (path.stat() for path in folder.rglob("*") if path.is_file())
    return {each.st_ino: each.st_size for each in found}.values()


def sizes_of(files: dict[str, bytes]) -> Iterable[int]:
    """The sizes of files that a command writes: of those with the same bytes, all but one are links."""
    return map(len, {*files.values()})


def test_a_full_disk(chosen: list[Stage], apart: Commands, tmp_path: Path) -> None:
    """The output is a file system with room for a part of it."""
    disk = tmp_path / "disk"
    disk.mkdir()
    out = disk / "out"
    for stage in chosen:
        rng = random.Random(stage.name)
        before = tree(stage.before) if stage.before else {}
        new = {name: data for name, data in stage.expected.items() if before.get(name) != data}
        for share in (rng.uniform(0.05, 0.4), rng.uniform(0.4, 0.9)):
            size = 2 + (pages(sizes_in(stage.before)) if stage.before else 0) + int(share * pages(sizes_of(new)))
            copied = f"cp -a {stage.before} {out}" if before else "true"
            apart.shell(f"mount -t tmpfs -o size={size * PAGE} tmpfs {disk}; {copied}")
            end = apart.run(words_of(stage, out, workers="1"))
            found, torn = tmp_path / "found", tmp_path / "torn"
            if end.code:
                assert end.code == 1
                line = error_of(apart)
                assert line.startswith("error: No space left on device ("), line
                assert line.endswith(f"); make room and {AGAIN}"), line
                apart.shell(f"mkdir -p {out}; cp -a {out} {torn}; mount -o remount,size=1g {disk}")
                check_whole_files(tree(torn), stage)
                assert apart.run(words_of(stage, out, workers="1")).code == 0, apart.log.read_text()
            apart.shell(f"cp -a {out} {found}; umount {disk}; rm -rf {torn}")
            assert tree(found) == stage.expected, stage.name
            copy(None, found)
            assert end.code or share > 0.4 or size >= pages(sizes_of(stage.expected)), f"{stage.name} needs no room"


def test_files_that_may_not_grow(chosen: list[Stage], commands: Commands, tmp_path: Path) -> None:
    """A limit of the size of a file, in the command and its workers."""
    out = tmp_path / "out"
    for stage in chosen:
        copy(stage.before, out)
        before = tree(stage.before) if stage.before else {}
        most = max(len(data) for name, data in stage.expected.items() if before.get(name) != data)
        end = commands.run(words_of(stage, out), limits={"FSIZE": most // 2})
        line = error_of(commands)
        assert end.code == 1
        assert line.startswith("error: File too large ("), line
        assert line.endswith(f"); raise the limit of file sizes (ulimit -f) and {AGAIN}"), line
        check_whole_files(tree(out), stage, stops_workers=True)
        assert commands.run(words_of(stage, out)).code == 0, commands.log.read_text()
        assert tree(out) == stage.expected, stage.name


def test_too_few_descriptors(chosen: list[Stage], commands: Commands, tmp_path: Path) -> None:
    out = tmp_path / "out"
    for stage in chosen:
        failed = 0
        for number in (0, 1, 4, 11):
            copy(stage.before, out)
            end = commands.run(words_of(stage, out), limits={"NOFILE": number})
            if end.code:
                failed += 1
                assert end.code == 1
                line = error_of(commands)
                assert line.startswith("error: Too many open files"), line
                assert line.endswith(f"; raise the limit of open files (ulimit -n) and {AGAIN}"), line
                check_whole_files(tree(out), stage)
        assert failed > 1
        assert commands.run(words_of(stage, out)).code == 0, commands.log.read_text()
        assert tree(out) == stage.expected, stage.name


def test_an_output_that_is_read_only(chosen: list[Stage], apart: Commands, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    out = disk / "out"
    for stage in chosen:
        copied = f"cp -a {stage.before} {out}" if stage.before else "true"
        apart.shell(f"mount -t tmpfs tmpfs {disk}; {copied}; mount -o remount,ro {disk}")
        end = apart.run(words_of(stage, out, workers="1"))
        line, there = error_of(apart), out if stage.before else disk
        if end.code == 2:
            places = ((out, there), (out / VALIDATION, out / VALIDATION))
            texts = [f"error: output folder '{a}': '{b}' cannot be written to; name another" for a, b in places]
            assert line in texts
        else:  # Of commands that have nothing to write if the output is up to date.
            assert end.code == 1
            assert line.startswith(f"error: Read-only file system ({out}"), line
            assert line.endswith("; make it writable, or name another output folder"), line
        apart.shell(f"mount -o remount,rw {disk}")
        assert apart.run(words_of(stage, out, workers="1")).code == 0, apart.log.read_text()
        apart.shell(f"cp -a {out} {tmp_path / 'found'}; umount {disk}")
        assert tree(tmp_path / "found") == stage.expected, stage.name
        copy(None, tmp_path / "found")


def test_without_shared_memory(chosen: list[Stage], apart: Commands, tmp_path: Path) -> None:
    """Nothing needs /dev/shm."""
    dev, out = tmp_path / "dev", tmp_path / "out"
    dev.mkdir()
    nodes = "null zero full random urandom"
    bound = f"for name in {nodes}; do touch {dev}/$name; mount --bind /dev/$name {dev}/$name; done"
    apart.shell(f"mount -t tmpfs tmpfs {dev}; {bound}; ln -s /proc/self/fd {dev}/fd; mount --rbind {dev} /dev")
    apart.shell("! test -e /dev/shm")
    for stage in chosen:
        copy(stage.before, out)
        assert apart.run(words_of(stage, out)).code == 0, apart.log.read_text()
        assert tree(out) == stage.expected, stage.name
    apart.shell(f"umount -R /dev; umount -R {dev}")
