"""SIGKILL at any moment, to any process: the same command, run again, ends in the bytes of an undisturbed run."""

from __future__ import annotations

import itertools
import json
import random
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from packer_cli.folder_lock import LOCK_NAME
from packer_cli.remote.path import RemotePath
from tests.reference import tree
from tests.remote.conftest import running, upload  # noqa: F401 - the fixture of the S3 server
from tests.remote.conftest import tree as remote_tree
from tests.s3_server import S3Server

from .commands import Commands
from .stages import WORKERS, Stage, copy


class OnDisk:
    """Output folders of this machine."""

    def __init__(self, folder: Path) -> None:
        self._out = folder / "out"

    def begin(self, before: Path | None) -> Any:
        """A folder as a command finds it."""
        copy(before, self._out)
        return self._out

    tree = staticmethod(tree)


class OnS3:
    """Output folders behind URLs."""

    def __init__(self, bucket: str) -> None:
        self._names = (RemotePath(f"s3://{bucket}/{number}") for number in itertools.count())

    def begin(self, before: Path | None) -> Any:
        """A folder as a command finds it."""
        out = next(self._names)
        if before:
            upload(before, out)
        return out

    @staticmethod
    def tree(out: Any) -> dict[str, bytes]:
        """Its objects, but for the lock of a killed run, which stays until another one takes it over."""
        return {name: data for name, data in remote_tree(out).items() if name != LOCK_NAME}


def kill(stage: Stage, words: list[str], commands: Commands, rng: random.Random) -> bool:
    """Run a command and kill it, at a file operation or after some time; whether it was killed before its end."""
    if stage.num_operations and rng.random() < 0.5:
        operation = 1 + rng.randrange(stage.num_operations)
        end = commands.run(words, operation, is_before=rng.random() < 0.5)
    else:
        after = rng.random() * stage.seconds
        end = commands.run_killed(words, after, rng, rng.choice(["parent", "worker", "group"]))
    assert end.code in (0, 1, -signal.SIGKILL), commands.log.read_text()
    return end.code != 0


def check_kills(
    count: int,
    rng: random.Random,
    stages: list[Stage],
    commands: Commands,
    place: OnDisk | OnS3,
    *,
    workers: float = 0.5,
    engine: tuple[str, ...] = (),
) -> None:
    """Kill commands so many times, and compare what they leave in the end.

    Args:
        workers: the share of commands that start worker processes, of those that can.
        engine: options for these commands, instead of a number of workers.
    """
    killed = 0
    while killed < count:
        stage = rng.choice(stages)
        out = place.begin(stage.before)
        alone = stage.words(out, *(("--workers", "1") if stage.has_workers else ()))
        words = alone
        if stage.has_workers and rng.random() < workers:
            words = stage.words(out, *(engine or WORKERS))
        before = killed
        while kill(stage, words, commands, rng):
            killed += 1
            check_set(stage, place.tree(out))
            if rng.random() < 0.6:
                break
        end = commands.run(alone)  # Any number of workers makes the same bytes.
        assert end.code == 0, (stage.name, commands.log.read_text())
        found = place.tree(out)
        assert found.keys() == stage.expected.keys(), (stage.name, killed - before)
        assert found == stage.expected, (stage.name, killed - before)


def check_set(stage: Stage, found: dict[str, bytes]) -> None:
    """Check what a killed command leaves of a set: the old version or the new one, whole, whichever it names."""
    name = "hbpack.json"
    before = {} if stage.before is None else tree(stage.before)
    if name not in found:
        assert name not in before, stage.name
        return
    versions = [files for files in (before, stage.expected) if files.get(name) == found[name]]
    assert versions, stage.name
    home = json.loads(found[name])["folder"]
    whole = {path: data for path, data in versions[0].items() if path.startswith(home)}
    if stage.name.startswith("rebalance"):  # Its own manifest is the new one already, and has all that it names.
        whole = {path: data for path, data in whole.items() if not path.endswith(name)}
    assert whole.items() <= found.items(), stage.name
    shards = {path for path in before if "/shards/" in path and not path.endswith(".json")}  # But no markers.
    if stage.name != "prune":
        assert {path: found.get(path) for path in shards} == {path: before[path] for path in shards}, stage.name


def timed(stages: list[Stage], commands: Commands, place: OnDisk | OnS3, *options: str) -> list[Stage]:
    """The stages with the time that each takes there undisturbed, and nothing of what it does."""
    found = []
    for stage in stages:
        out = place.begin(stage.before)
        end = commands.run(stage.words(out, *options))
        assert end.code == 0, (stage.name, commands.log.read_text())
        assert place.tree(out) == stage.expected, stage.name
        found.append(replace(stage, seconds=end.seconds, num_operations=0))
    return found


def test_five_kills(stages, commands, tmp_path):
    check_kills(5, random.Random(0), stages, commands, OnDisk(tmp_path), workers=0.3)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(1, 11))
def test_ninety_kills(stages, commands, tmp_path, seed):
    check_kills(90, random.Random(seed), stages, commands, OnDisk(tmp_path), workers=0.7)


@pytest.mark.soak
def test_eighty_kills_of_commands_that_write_to_s3(
    stages,
    repo,
    tmp_path,
    running: S3Server,  # noqa: F811
):
    import fsspec

    fsspec.filesystem("s3", endpoint_url=running.url, key="key", secret="secret").mkdir("kills")
    place, commands = OnS3("kills"), Commands(repo, tmp_path)
    able = [stage for stage in stages if stage.name != "write the index"]  # It needs a local folder.
    check_kills(80, random.Random(80), timed(able, commands, place), commands, place)
    commands.close()


@pytest.mark.soak
def test_twenty_kills_of_commands_on_ray(stages, repo, tmp_path):
    """Of the command itself, and of Ray's workers, in one cluster."""
    pytest.importorskip("ray")
    from packer_cli.engine.ray import start, stop

    assert start(None, 2)
    import ray

    engine = ("--engine", f"ray:{ray.get_runtime_context().gcs_address}")
    place, commands = OnDisk(tmp_path), Commands(repo, tmp_path)
    names = ("tokenize", "write", "last task of tokenize", "last task of write", "export to mds", "export to megatron")
    on_ray = timed([stage for stage in stages if stage.name in names], commands, place, *engine)
    check_kills(20, random.Random(20), on_ray, commands, place, workers=1, engine=engine)
    commands.close()
    stop()
