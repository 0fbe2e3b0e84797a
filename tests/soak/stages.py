"""Every command that makes a set, with the folder that it begins with, and what an undisturbed run leaves."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

from tests.reference import tree

from .commands import Commands

WORKERS = ("--workers", "2")


@dataclass(frozen=True, kw_only=True)
class Stage:
    """A command, the folder that it begins with, and what it leaves."""

    name: str
    arguments: list[str]
    """`OUT` stands for its folder."""
    has_workers: bool
    before: Path | None
    expected: dict[str, bytes]
    num_operations: int
    """Of files, by the main process; 0 where they are not known."""
    seconds: float

    def words(self, folder: object, *options: str) -> list[str]:
        """The command line for this folder."""
        return [*(word.replace("OUT", str(folder)) for word in self.arguments), *options]


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
        (corpus / "b.jsonl").write_bytes(with_ballast(lines[300:900]))  # Two parts of its own.
        (corpus / "c.jsonl").write_bytes(b"".join(lines[900:1200]))
        (folder / "other.jsonl").write_bytes(b"".join(lines[1200:1400]))
        made_by = ["--tokenizer", str(sample / "tokenizer"), "-o", "OUT"]
        tokenize = ["tokenize", str(corpus), *made_by]
        plan = ["plan", "OUT", "--groups", "1k:1,8k:4", "--gpus", "8"]
        tokens = self._add("tokenize", tokenize, None)
        planned = self._add("plan", plan, tokens, has_workers=False)
        write = ["write", "OUT", "--shard-size", "100KiB"]
        written = self._add("write", write, planned)
        self._add_last_task(tokenize, None, tokens)
        self._add_last_task(write, planned, written)
        self._add("write the index", ["write", "OUT", "--index-only", "--shard-size", "100KiB"], written)
        self._add("append", ["append", "OUT", str(folder / "other.jsonl")], written)
        self._add("rebalance", ["rebalance", "OUT", "--gpus", "4"], written, has_workers=False)
        for name in ("mds", "megatron"):
            export = ["export", str(written), "--to", name, "--shard-size", "200KiB", "-o", "OUT"]
            self._add(f"export to {name}", export, None)
        # Over what another run made, which may not be taken for its own.
        again = ["pack", str(corpus / "a.jsonl"), *made_by, "--groups", "2k:1,8k:2", "--gpus", "4"]
        self._add("pack again", again, written)
        self._add("plan again", [*plan, "--packing", "ffd"], written, has_workers=False)
        split = self._add("pack a split", [*again, "--validation", "10%"], written)
        self._add("split otherwise", [*again, "--validation", "30"], split)
        self._add("pack no split", again, split)
        self._add("rebalance a split", ["rebalance", "OUT", "--gpus", "2"], split, has_workers=False)
        # Versions of a set, of which the first is the current one again.
        restored = self._add("restore", ["restore", "OUT@1"], split, has_workers=False)
        self._add("prune", ["prune", "OUT", "--keep", "1"], restored, has_workers=False)
        (folder / "weighted.jsonl").write_bytes(lines[0] + with_ballast(lines[300:900], weight=0.5))
        weighted = ["pack", str(folder / "weighted.jsonl"), *made_by, "--groups", "1k:1", "--gpus", "4"]
        self._add("pack weights", [*weighted, "--shard-size", "100KiB"], None)

    def _add(self, name: str, arguments: list[str], before: Path | None, *, has_workers: bool = True) -> Path:
        target = self._folder / name.replace(" ", "-")
        copy(before, target)
        words = [word.replace("OUT", str(target)) for word in arguments]
        end = self._commands.run([*words, *(WORKERS if has_workers else ())])
        assert end.code == 0, self._commands.log.read_text()
        stage = Stage(
            name=name,
            arguments=arguments,
            has_workers=has_workers,
            before=before,
            expected=tree(target),
            num_operations=end.num_operations,
            seconds=end.seconds,
        )
        self.stages.append(stage)
        return target

    def _add_last_task(self, arguments: list[str], before: Path | None, whole: Path) -> None:
        """The second of two tasks of an array, which completes what an ordinary run makes."""
        first = self._folder / f"first-task-of-{arguments[0]}"
        copy(before, first)
        words = [word.replace("OUT", str(first)) for word in arguments]
        assert self._commands.run([*words, "--shard", "0/2"]).code == 0, self._commands.log.read_text()
        self._add(f"last task of {arguments[0]}", [*arguments, "--shard", "1/2"], first)
        assert self.stages[-1].expected == tree(whole)


def with_ballast(lines: list[bytes], **others: object) -> bytes:
    """The records with a field that nobody reads: many bytes of input, and few tokens."""
    fields = {**others, "of_no_use": "x" * 8000}
    return b"".join(json.dumps({**json.loads(line), **fields}).encode() + b"\n" for line in lines)


def copy(source: Path | None, target: Path) -> None:
    """Make a folder as another one, or let there be none."""
    shutil.rmtree(target, ignore_errors=True)
    if source:
        shutil.copytree(source, target, symlinks=True)
