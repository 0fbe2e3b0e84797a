"""The golden cases: what they hold, how they are planned and packed, and their hashes.

A case of `plans` is the options of a plan. One of `sets` is `OPTIONS | GPUS[:STEP[:TOKENS]] ...`: a packed set, and
then rebalances of it, each to that many GPUs, from that step on, with that many tokens a step.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

import packer_cli
from packer_cli.cli.main import main
from packer_cli.plan.core.types import Plan
from tests.cli_runner import run
from tests.golden.hashes import hash_of_set, lengths_of_all_sizes

FILE = Path(__file__).with_name("golden.json")


class World(NamedTuple):
    """What the cases plan with."""

    store: Path
    """A packed set that keeps its tokens."""
    model: Path


def make_world(folder: Path, repo: Path) -> World:
    """Tokenize some of the bundled sample."""
    sample, corpus = repo / "examples" / "sample", folder / "corpus.jsonl"
    lines = [(sample / name).read_text(encoding="utf-8").splitlines(keepends=True) for name in _FILES]
    corpus.write_text("".join(lines[0][:250] + lines[1][:12]), encoding="utf-8")
    _run("tokenize", corpus, "--tokenizer", sample / "tokenizer", "--output", folder / "store", "--workers", 1)
    return World(folder / "store", sample / "model")


_FILES = ("chats.jsonl", "journals.jsonl")


def plan_of_case(case: str, world: World) -> Plan:
    """A plan of lengths."""
    options = {name.replace("-", "_"): value for name, value in options_of(case, world).items()}
    return packer_cli.plan(lengths_of_all_sizes(), **options).arrays


def hashes_of_chain(case: str, world: World, out: Path) -> str:
    """The hashes of a set and of each rebalance of it."""
    options, _, rebalances = case.partition(" | ")
    words = [word for name, value in options_of(options, world).items() for word in (f"--{name}", value)]
    _run("plan", world.store, "--output", out, *words)
    _run("write", out, "--shard-size", "64KiB", "--workers", 1)
    hashes = [hash_of_set(out)]
    for each in rebalances.split():
        values = zip(("--gpus", "--from-step", "--global-tokens"), each.split(":"), strict=False)
        _run("rebalance", out, *[word for name, value in values if value for word in (name, value)])
        hashes.append(hash_of_set(out))
    return " ".join(hashes)


def options_of(text: str, world: World) -> dict[str, str]:
    """`name=value` of each word; `model` stands for the model and a GPU."""
    words = text.replace("model=", f"model={world.model} gpu=").split()
    return dict(word.split("=", 1) for word in words)


def read_golden() -> dict[str, dict[str, str]]:
    """Case -> hash, of `plans` and of `sets`."""
    golden: dict[str, dict[str, str]] = json.loads(FILE.read_text(encoding="utf-8"))
    return golden


def _run(*words: object) -> None:
    done = run(main, *words)
    assert done.code == 0, done.stderr
