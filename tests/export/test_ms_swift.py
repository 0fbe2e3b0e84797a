"""ms-swift: its packing gives the packs back. Its rules are written down here.

They are those of modelscope/ms-swift 4.6 at 3602360 (August 2026): `dataset/packing.py` (`calculate_matched_group`
with `sequential`, which `PackingDataset` calls for 1,000 samples at a time), `template/base.py` (`packing_row`, which
joins the columns of a pack's samples), `pipelines/train/sft.py` (`_post_process_datasets` encodes samples again unless
`truncation_strategy` is `split`) and `pipelines/utils.py` (`get_cached_dataset` opens the folder).
"""

from __future__ import annotations

import itertools
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from packer_cli.cli.main import main
from tests.cli_runner import run
from tests.export.conftest import CAPACITY, export, samples_of
from tests.reference import read_packs

Row = dict[str, Any]
CHUNK = 1000


def packs_of(lengths: list[int], capacity: int) -> list[list[int]]:
    """Numbers of the samples of each pack, as ms-swift makes them."""
    packs: list[list[int]] = []
    left: list[int] = []
    for first in range(0, len(lengths), CHUNK):
        numbers = left + list(range(first, min(first + CHUNK, len(lengths))))
        left, size = [], 0
        for number in numbers:
            if left and size + lengths[number] > capacity:
                packs.append(left)
                left, size = [], 0
            left.append(number)
            size += lengths[number]
            if size >= capacity:
                packs.append(left)
                left, size = [], 0
    return [*packs, left] if left else packs


def joined(rows: list[Row]) -> Row:
    """A pack, as its collator joins samples."""
    sizes = [row["length"] for row in rows]
    found = {name: [item for row in rows for item in row[name]] for name in ("input_ids", "labels")}
    return {**found, "position_ids": [place for size in sizes for place in range(size)]}


@pytest.fixture(scope="session")
def rows(exported) -> list[Row]:
    """The export, as `cached_dataset` is opened."""
    import datasets

    loaded = datasets.load_from_disk(str(exported("ms-swift")))
    assert loaded.column_names == ["input_ids", "labels", "length", "lengths"]
    return list(loaded)


def test_each_row_is_a_sample(rows):
    for row in rows:
        assert len(row["input_ids"]) == len(row["labels"]) == row["length"] == sum(row["lengths"])
        assert row["labels"][0] == -100
        wrong = {label for label, token in zip(row["labels"], row["input_ids"], strict=True) if label != token}
        assert wrong <= {-100}


def test_its_packing_gives_the_packs_back_in_order(rows, filled):
    assert_same_packs(rows, filled, CAPACITY)


def test_its_own_data_set_makes_those_packs(rows, exported):
    packing = pytest.importorskip("swift.dataset.packing", exc_type=Exception)
    import datasets

    options = {"packing_length": CAPACITY, "packing_strategy": "sequential", "packing_num_proc": 1}
    cached = datasets.load_from_disk(str(exported("ms-swift")))
    packs = packing.PackingDataset(SimpleNamespace(max_length=CAPACITY), cached, **options)
    assert packs.packed_idx == packs_of([row["length"] for row in rows], CAPACITY)
    assert packs[0] == [rows[number] for number in packs.packed_idx[0]]


def assert_same_packs(rows: list[Row], wanted: list[Row], capacity: int) -> int:
    """Each pack has the samples of ours, the longest one first, and perhaps pads; returns how many have these."""
    found = packs_of([row["length"] for row in rows], capacity)
    assert len(found) == len(wanted)
    num_padded = 0
    for numbers, pack in zip(found, wanted, strict=True):
        samples = [(ids, np.where(mask, ids, -100).tolist()) for ids, mask in samples_of(pack)]
        longest = max(range(len(samples)), key=lambda number: len(samples[number][0]))
        samples = [samples[longest], *samples[:longest], *samples[longest + 1 :]]
        of_pack = [(rows[number]["input_ids"], rows[number]["labels"]) for number in numbers]
        if len(of_pack) > len(samples):
            num_padded += 1
            ids, labels = of_pack.pop()
            assert set(ids) == {0}
            assert set(labels) == {-100}
            assert pack["num_tokens"] + len(ids) == capacity
        assert of_pack == samples
        whole = joined([rows[number] for number in numbers])
        borders = [place for place, position in enumerate(whole["position_ids"]) if position == 0]
        sizes = [len(ids) for ids, _ in samples]
        assert borders[: len(sizes)] == [0, *itertools.accumulate(sizes)][: len(sizes)]
    return num_padded


@pytest.mark.parametrize("strategy", ["balanced", "naive"])
def test_packs_that_are_hardly_full_stay_apart(repo: Path, tmp_path: Path, strategy: str) -> None:
    """More samples than ms-swift takes at once, in packs of at most four."""
    import datasets

    sample = repo / "examples" / "sample"
    limit = ["--max-samples", 4] if strategy == "balanced" else []
    done = run(
        main, "pack", sample / "chats.jsonl", "--tokenizer", sample / "tokenizer", "--groups", "2k", "--gpus", 4,
        "--strategy", strategy, *limit, "--workers", 1, "--output", tmp_path / "out",
    )  # fmt: skip
    assert done.code == 0, done.stderr
    done = export(tmp_path / "out", "ms-swift", tmp_path / "dir", "--order", "packs", "--shard-size", "64KiB")
    assert done.code == 0, done.stderr
    rows = list(datasets.load_from_disk(str(tmp_path / "dir")))
    assert len(rows) > CHUNK or strategy == "naive"
    num_padded = assert_same_packs(rows, read_packs(tmp_path / "out"), 2048)
    assert num_padded > 10 or strategy == "naive"
    assert f"--cached_dataset {tmp_path / 'dir'} --truncation_strategy split" in done.stdout
    assert "--packing_length 2048 " in done.stdout
