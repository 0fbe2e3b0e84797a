"""SIGKILL at any moment, to any process: the same command, run again, ends in the bytes of an undisturbed run."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from tests.reference import tree

SECONDS = 120.0
"""A command that takes longer hangs."""


@dataclass(frozen=True)
class End:
    code: int
    num_operations: int
    seconds: float


class Commands:
    """Runs the command line, and kills it on the way."""

    def __init__(self, repo: Path, folder: Path) -> None:
        self.log = folder / "log"
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.soak.killed"],
            cwd=repo,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def close(self) -> None:
        assert self._process.stdin
        self._process.stdin.close()
        self._process.wait(SECONDS)

    def run(self, arguments: list[str], operation: int | None = None, *, is_before: bool = True) -> End:
        """Run a command to its end, or up to a file operation of its main process."""
        pid, start = self._start(arguments, operation, is_before)
        return self._end(pid, start)

    def run_killed(self, arguments: list[str], after: float, rng: random.Random, victims: str) -> End:
        """Run a command, and kill one of its processes after some seconds; which ones is `victims`."""
        pid, start = self._start(arguments, None, True)
        time.sleep(after)
        with suppress(psutil.Error, ProcessLookupError):
            workers = [each.pid for each in psutil.Process(pid).children(recursive=True)]
            if victims == "group":
                os.killpg(pid, signal.SIGKILL)
            else:
                os.kill(rng.choice(workers) if victims == "worker" and workers else pid, signal.SIGKILL)
        return self._end(pid, start)

    def _start(self, arguments: list[str], operation: int | None, is_before: bool) -> tuple[int, float]:
        assert self._process.stdin
        order = {"arguments": arguments, "log": str(self.log), "operation": operation, "is_before": is_before}
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        return int(self._line()), time.perf_counter()

    def _end(self, pid: int, start: float) -> End:
        code, num_operations = json.loads(self._line())
        end = End(code, num_operations, time.perf_counter() - start)
        assert end.seconds < SECONDS
        text = self.log.read_text()
        assert "Traceback" not in text, text
        wait_for_group(pid)
        return end

    def _line(self) -> str:
        assert self._process.stdout
        return self._process.stdout.readline()


def wait_for_group(pid: int) -> None:
    """Wait until the workers of a command have ended, too: they notice that it is gone."""
    end = time.monotonic() + 10
    while time.monotonic() < end:
        try:
            os.killpg(pid, 0)
        except ProcessLookupError:
            return
        time.sleep(0.01)
    raise AssertionError("workers outlive their command")


@dataclass(frozen=True)
class Stage:
    """A command, the folder that it begins with, and what it leaves."""

    name: str
    arguments: list[str]
    """`OUT` stands for its folder."""
    before: Path | None
    expected: dict[str, bytes]
    num_operations: int
    seconds: float

    def words(self, folder: Path) -> list[str]:
        return [word.replace("OUT", str(folder)) for word in self.arguments]


class Stages:
    """All commands, with undisturbed runs."""

    def __init__(self, commands: Commands, sample: Path, folder: Path) -> None:
        self.stages: list[Stage] = []
        self._commands = commands
        self._folder = folder
        corpus = folder / "corpus"
        corpus.mkdir()
        lines = (sample / "chats.jsonl").read_bytes().splitlines(keepends=True)
        (corpus / "a.jsonl").write_bytes(b"".join(lines[:300]) + b"no record\n")
        (corpus / "b.jsonl").write_bytes(b"".join(lines) * 6)  # Of its own part.
        (corpus / "c.jsonl").write_bytes(b"".join(lines[300:600]))
        (folder / "other.jsonl").write_bytes(b"".join(lines[600:900]))
        tokenize = ["tokenize", str(corpus), "--tokenizer", str(sample / "tokenizer"), "-o", "OUT", "--workers", "2"]
        plan = ["plan", "OUT", "--groups", "1k:1,8k:4", "--gpus", "8"]
        tokens = self._add("tokenize", tokenize, None)
        planned = self._add("plan", plan, tokens)
        write = ["write", "OUT", "--shard-size", "512KiB", "--workers", "2"]
        written = self._add("write", write, planned)
        self._add_last_task(tokenize, None, tokens)
        self._add_last_task(write, planned, written)
        index_only = ["write", "OUT", "--index-only", "--shard-size", "512KiB", "--workers", "2"]
        self._add("write the index", index_only, written)
        self._add("append", ["append", "OUT", str(folder / "other.jsonl"), "--workers", "2"], written)
        self._add("rebalance", ["rebalance", "OUT", "--gpus", "4"], written)
        for name in ("mds", "megatron"):
            export = ["export", str(written), "--to", name, "--shard-size", "1MiB", "-o", "OUT", "--workers", "2"]
            self._add(f"export to {name}", export, None)
        # Over what another run made, which may not be taken for its own.
        pack = [
            "pack",
            str(corpus / "a.jsonl"),
            *tokenize[2:6],
            "--groups",
            "2k:1,8k:2",
            "--gpus",
            "4",
            "--workers",
            "2",
        ]
        self._add("pack again", pack, written)
        self._add("plan again", [*plan, "--packing", "ffd"], written)

    def _add(self, name: str, arguments: list[str], before: Path | None) -> Path:
        target = self._folder / name.replace(" ", "-")
        self.copy(before, target)
        words = [word.replace("OUT", str(target)) for word in arguments]
        end = self._commands.run(words)
        assert end.code == 0, self._commands.log.read_text()
        self.stages.append(Stage(name, arguments, before, tree(target), end.num_operations, end.seconds))
        return target

    def _add_last_task(self, arguments: list[str], before: Path | None, whole: Path) -> None:
        """The second of two tasks of an array, which completes what an ordinary run makes."""
        first = self._folder / f"first-task-of-{arguments[0]}"
        self.copy(before, first)
        words = [word.replace("OUT", str(first)) for word in arguments]
        assert self._commands.run([*words, "--shard", "0/2"]).code == 0, self._commands.log.read_text()
        self._add(f"last task of {arguments[0]}", [*arguments, "--shard", "1/2"], first)
        assert self.stages[-1].expected == tree(whole)

    @staticmethod
    def copy(source: Path | None, target: Path) -> None:
        shutil.rmtree(target, ignore_errors=True)
        if source:
            shutil.copytree(source, target)


@pytest.fixture(scope="module")
def commands(repo, tmp_path_factory) -> Iterator[Commands]:
    commands = Commands(repo, tmp_path_factory.mktemp("log"))
    yield commands
    commands.close()


@pytest.fixture(scope="module")
def stages(commands, repo, tmp_path_factory) -> list[Stage]:
    return Stages(commands, repo / "examples" / "sample", tmp_path_factory.mktemp("undisturbed")).stages


def kill(stage: Stage, words: list[str], commands: Commands, rng: random.Random) -> bool:
    """Run a command and kill it, at a file operation or after some time; whether it was killed before its end."""
    if rng.random() < 0.5:
        operation = 1 + rng.randrange(stage.num_operations)
        end = commands.run(words, operation, is_before=rng.random() < 0.5)
    else:
        after = rng.random() * stage.seconds
        end = commands.run_killed(words, after, rng, rng.choice(["parent", "worker", "group"]))
    assert end.code in (0, 1, -signal.SIGKILL), commands.log.read_text()
    return end.code != 0


def check_kills(count: int, seed: int, stages: list[Stage], commands: Commands, folder: Path) -> None:
    """Kill commands so many times, and compare what they leave in the end."""
    rng = random.Random(seed)
    killed = 0
    while killed < count:
        stage = rng.choice(stages)
        out = folder / "out"
        Stages.copy(stage.before, out)
        words = stage.words(out)
        before = killed
        while kill(stage, words, commands, rng):
            killed += 1
            if rng.random() < 0.6:
                break
        end = commands.run(words)
        assert end.code == 0, (stage.name, commands.log.read_text())
        found = tree(out)
        assert found.keys() == stage.expected.keys(), (stage.name, killed - before)
        assert found == stage.expected, (stage.name, killed - before)


def test_twenty_five_kills(stages, commands, tmp_path):
    check_kills(25, 0, stages, commands, tmp_path)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(1, 11))
def test_a_hundred_kills(stages, commands, tmp_path, seed):
    check_kills(100, seed, stages, commands, tmp_path)
