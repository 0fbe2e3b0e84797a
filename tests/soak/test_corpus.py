"""Thousands of bad records in every format: each is a sample or a rejected line, and no damage does more than that."""

from __future__ import annotations

import faulthandler
import json
import random
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from packer_cli.commands.tokenize import run_tokenize
from packer_cli.config import TokenizeConfig
from packer_cli.engine.local import LocalEngine
from packer_cli.errors import HbpackError
from packer_cli.tokens.index import StoreIndex

from .records import FILES, damage

SECONDS = 120
"""A run over a few hundred records that takes longer hangs; the process is then ended, with all its stacks."""


@pytest.fixture(scope="module")
def engine() -> Iterator[LocalEngine]:
    with LocalEngine(2, ["packer_cli.tokens.preload"]) as engine:
        yield engine


def tokenize(folder: Path, inputs: list[Path], engine: LocalEngine, repo: Path) -> StoreIndex:
    tokenizer = str(repo / "examples" / "sample" / "tokenizer")
    config = TokenizeConfig(inputs=tuple(map(str, inputs)), tokenizer=tokenizer, max_record_bytes=2**16)
    faulthandler.dump_traceback_later(SECONDS, exit=True)
    try:
        return run_tokenize(config, folder, engine)
    finally:
        faulthandler.cancel_dump_traceback_later()


def check_rejects(folder: Path, index: StoreIndex) -> None:
    """As many reasons as the index counts, and the records that it counts."""
    for part in index.parts:
        path = folder / "tokens" / part.path.replace("part-", "rejected-").replace(".arrow", ".jsonl")
        lines = [json.loads(line) for line in path.open(encoding="utf-8")] if part.num_rejected else []
        assert len(lines) == part.num_rejected == sum(file.num_rejected for file in part.files)
        assert all(line["reason"] and line["line"] >= 1 for line in lines)


def soak(count: int, damaged: int, seed: int, folder: Path, engine: LocalEngine, repo: Path) -> int:
    """`count` records a format, and `damaged` damaged files; gives how many records were accounted for.

    Of a row that packs several samples each is counted.
    """
    rng = random.Random(seed)
    data = folder / "data"
    data.mkdir(parents=True)
    expected = {name: write(data, name, count, rng) for name, write in FILES.items()}
    index = tokenize(folder / "whole", [data / name for name in FILES], engine, repo)
    check_rejects(folder / "whole", index)
    found: Counter[str] = Counter()
    for file in (file for part in index.parts for file in part.files):
        assert not file.unreadable
        found[Path(file.path).relative_to(data).parts[0]] += file.num_samples + file.num_rejected
    assert found == expected
    names = [name for name in FILES if name != "texts"]
    for number in range(damaged):
        name = rng.choice(names)
        path = folder / f"{number}-{name}"
        for whole in (data / name, (data / name).with_suffix(".idx"), data / f"{name}.index"):  # An index, if any.
            if whole.exists():
                part = folder / f"{number}-{whole.name}"
                part.write_bytes(damage(whole.read_bytes(), rng))
        out = folder / f"out-{number}"
        with suppress(HbpackError):  # Nothing of it can be read; anything else that is raised is a traceback.
            check_rejects(out, tokenize(out, [path], engine, repo))
    return sum(expected.values())


def test_a_thousand_records(tmp_path, engine, repo):
    assert soak(100, 6, 0, tmp_path, engine, repo) > 1000


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(1, 11))
def test_ten_thousand_records(tmp_path, engine, repo, seed):
    assert soak(1300, 100, seed, tmp_path, engine, repo) > 10_000
