"""Token stores of items, from records."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from packer_cli.format.arrays import to_numpy
from packer_cli.format.trees import Trees
from tests.items.conftest import hbpack, records
from tests.reference import store_parts, tree


def index_of(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "tokens/tokens.json").read_text())
    return found


def branches_of(folder: Path) -> list[list[list[int]]]:
    """The ids of the branches of each row."""
    found = []
    for path in store_parts(folder):
        for row in pa.ipc.open_file(path.read_bytes()).read_all().to_pylist():
            ids = to_numpy(pa.array(row["input_ids"], pa.int32()))
            names = ("segment_starts", "segment_parents", "branch_segments")
            trees = Trees(*(to_numpy(pa.array(row[name], pa.int32())) for name in names))
            paths = trees.paths(trees.branch_segments)
            borders = zip(paths.offsets[:-1], paths.offsets[1:], strict=True)
            found.append([ids[paths.values[a:b]].tolist() for a, b in borders])
    return found


def test_what_the_index_says_of_items(packed: Path, corpus: Path) -> None:
    index = index_of(packed)
    rows = [json.loads(line) for line in corpus.read_text().splitlines()]
    turns = [sum(message["role"] == "assistant" for message in row.get("messages", [])) for row in rows]
    (part,) = index["parts"]
    single = sum(number == 1 for number in turns)
    assert part["kinds"] == {"sample": 20 + single, "pair": 20, "turns": 20 - single}
    assert part["num_branches"] == 40 + sum(turns) + 20
    assert sum(part["shapes"].values()) == part["num_samples"] == part["files"][0]["num_samples"] == 60
    branches = branches_of(packed)
    assert part["num_flat_tokens"] == sum(len(branch) for item in branches for branch in item)
    assert part["num_tokens"] < part["num_flat_tokens"]


def test_without_sharing_the_branches_are_the_same(
    packed: Path, corpus: Path, words: list[object], tmp_path: Path
) -> None:
    done = hbpack("tokenize", corpus, *words[:4], "--no-share-prefixes", "--output", tmp_path)
    assert done.code == 0, done.stderr
    (part,) = index_of(tmp_path)["parts"]
    assert part["num_tokens"] == part["num_flat_tokens"]
    assert branches_of(tmp_path) == branches_of(packed)


def test_parts_with_trees_and_without(words: list[object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasks of an array write the same bytes."""
    monkeypatch.setattr("packer_cli.tokens.input_slices.GROUP_BYTES", 0)
    pairs, texts = tmp_path / "pairs.jsonl", tmp_path / "texts.jsonl"
    for path, first in ((pairs, 0), (texts, 2)):
        path.write_text("".join(json.dumps(record) + "\n" for record in records(0, 60)[first::3]))
    for name, shares in (("whole", [[]]), ("array", [["--shard", "0/2"], ["--shard", "1/2"]])):
        for share in shares:
            done = hbpack("tokenize", pairs, texts, *words[:2], *share, "--output", tmp_path / name)
            assert done.code == 0, done.stderr
    index = index_of(tmp_path / "whole")
    assert [bool(part["kinds"]) for part in index["parts"]] == [True, False]
    assert tree(tmp_path / "whole") == tree(tmp_path / "array")
