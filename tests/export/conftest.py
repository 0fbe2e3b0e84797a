"""What the tests of exports share: the packed sample, its packs as pyarrow reads them, and exports made once."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from packer_cli.cli.main import main
from tests.cli_runner import Done, run
from tests.reference import rank_rows, read_packs

Pack = dict[str, Any]

SIZE = ("--shard-size", "300kB")
FILLED = ("automodel", "llamafactory", "ms-swift", "nemo-rl", "xtuner")
"""Formats whose rows are filled up, some by the trainer, and so hold one capacity."""
CAPACITY = 1024


def options_of(name: str) -> tuple[str, ...]:
    """Several parts; one capacity where there may not be more."""
    if name == "nemo-rl":
        return ("--shard-size", "150kB")
    return (*SIZE, "--groups", "1k") if name in FILLED else SIZE


@pytest.fixture(scope="session")
def packed(repo, tmp_path_factory) -> Path:
    """The sample corpus: two groups, several shards each, two epochs, long documents cut."""
    sample = repo / "examples" / "sample"
    output = tmp_path_factory.mktemp("export") / "out"
    done = run(
        main, "pack", sample / "chats.jsonl", sample / "journals.jsonl", "--tokenizer", sample / "tokenizer",
        "--groups", "1k:1,8k:4", "--gpus", 8, "--overflow", "split", "--epochs", 2, "--shard-size", "128KiB",
        "--workers", 1, "--output", output,
    )  # fmt: skip
    assert done.code == 0, done.stderr
    return output


IDENTITY = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
"""The template of NeMo-RL's prompt format of this name."""


@pytest.fixture(scope="session")
def conversations(repo, tmp_path_factory) -> Path:
    """The chats of the sample corpus, packed as NeMo-RL reads them: each begins with a system message."""
    folder = tmp_path_factory.mktemp("conversations")
    with (repo / "examples" / "sample" / "chats.jsonl").open() as source, (folder / "chats.jsonl").open("w") as file:
        for record in map(json.loads, source):
            if record["messages"][0]["role"] != "system":
                record["messages"].insert(0, {"role": "system", "content": "Be brief."})
            file.write(json.dumps(record) + "\n")
    done = run(
        main, "pack", folder / "chats.jsonl", "--tokenizer", repo / "examples" / "sample" / "tokenizer",
        "--chat-template", IDENTITY, "--append-eos", "never", "--loss-on", "all", "--groups", "1k", "--gpus", 4,
        "--workers", 1, "--output", folder / "out",
    )  # fmt: skip
    assert done.code == 0, done.stderr
    return folder / "out"


@pytest.fixture(scope="session")
def source_of(packed, conversations) -> Callable[[str], Path]:
    """The set that is exported to a format: not every one has a place for texts."""
    return lambda name: conversations if name == "nemo-rl" else packed


@pytest.fixture(scope="session")
def packs(packed) -> list[Pack]:
    """All packs by id."""
    return read_packs(packed)


def used(packed: Path, epoch: int) -> list[int]:
    """Pack ids as the rank manifests use them: by iteration, then DP rank."""
    manifest = json.loads((packed / "hbpack.json").read_text())
    found = []
    for rank in range(manifest["num_gpus"]):
        for row in rank_rows(packed, rank, f"epoch-{epoch:03d}"):
            if row["sp_rank"] == 0 and row["pack"] >= 0:
                found.append((row["iteration"], row["dp_rank"], row["pack"]))
    return [pack for _, _, pack in sorted(found)]


@pytest.fixture(scope="session")
def in_use(packed, packs) -> list[Pack]:
    """The packs in the order of use of epoch 0: what an export holds, row by row."""
    order = used(packed, 0)
    assert sorted(order) == list(range(len(packs)))
    assert order != sorted(order)
    return [packs[pack] for pack in order]


@pytest.fixture(scope="session")
def filled(in_use) -> list[Pack]:
    """The same of the group with a capacity of 1,024: what formats hold whose rows are filled up."""
    found = [pack for pack in in_use if pack["group"] == 0]
    sizes = {pack["num_tokens"] for pack in found}
    assert max(sizes) == CAPACITY  # Some are full,
    assert len(sizes) > 10  # and most are not.
    return found


NUM_COMPARED = 2
"""Rows whose loss is compared: a model of any size takes a while for a row with a mask."""


@pytest.fixture(scope="session")
def wanted_loss(filled) -> float:
    """The sum of the losses of the samples in the first rows of `filled`, each alone."""
    pytest.importorskip("torch")
    from tests.tiny_model import naive_loss

    return naive_loss(samples_of(pack) for pack in filled[:NUM_COMPARED])


def samples_of(pack: Pack) -> list[tuple[list[int], list[int]]]:
    """(ids, loss mask) of each sample of a pack."""
    borders = pack["cu_seqlens"].tolist()
    return [
        (pack["input_ids"][begin:end].tolist(), pack["loss_mask"][begin:end].tolist())
        for begin, end in itertools.pairwise(borders)
    ]


def export(packed: Path, name: str, output: Path, *options: object, workers: int = 2) -> Done:
    return run(main, "export", packed, "--to", name, "--output", output, "--workers", workers, *options)


@pytest.fixture(scope="session")
def exported(source_of, tmp_path_factory) -> Callable[[str], Path]:
    """The export to a format, made once: several parts, on two threads."""
    made: dict[str, Path] = {}

    def make(name: str) -> Path:
        if name not in made:
            output = tmp_path_factory.mktemp(name) / "dir"
            done = export(source_of(name), name, output, *options_of(name))
            assert done.code == 0, done.stderr
            made[name] = output
        return made[name]

    return make


def docs_block(path: Path, heading: str) -> str:
    """The first Python of a section."""
    section = path.read_text(encoding="utf-8").split(f"\n{heading}\n")[1]
    return section.split("```python\n")[1].split("```")[0]
