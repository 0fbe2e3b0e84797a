"""The rows of shards are the items of the token store, and the ranks count them."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from packer_cli.export.push import card_of
from packer_cli.format.arrays import columns_of
from packer_cli.format.items import find_wrong_items
from packer_cli.format.schema import ITEM_VALUES
from packer_cli.format.shards import row_of
from packer_cli.plan.core.types import Pieces
from packer_cli.shards.manifest import read_manifest
from packer_cli.shards.plan_file import read_plan
from tests.items.conftest import hbpack
from tests.reference import home, store_parts, tree


def rows_of(files: list[Path]) -> list[dict[str, Any]]:
    return [row for file in files for row in pa.ipc.open_file(file.read_bytes()).read_all().to_pylist()]


@pytest.fixture(scope="module")
def items(packed: Path) -> list[dict[str, Any]]:
    """The rows of the token store, and the number of the first branch of each."""
    found, first = rows_of(store_parts(packed)), 0
    for item in found:
        item["first_branch"] = first
        first += len(item["branch_segments"])
    return found


def expected(items: list[dict[str, Any]], members: list[int]) -> dict[str, list[Any]]:
    """The columns of a pack of whole items, in plain Python."""
    row: dict[str, list[Any]] = {name: [] for name in (
        "input_ids", "loss_starts", "loss_stops", "loss_weights", "segment_parents", "branch_segments", "branch_roles",
        "branch_loss_spans", "rewards", "item_ids", "item_branches", "item_kinds", *ITEM_VALUES, "sample_ids",
        "sample_starts", "source_ids",
    )}  # fmt: skip
    row["segment_starts"] = [0]
    for number in members:
        item, first, begin = items[number], len(row["segment_parents"]), len(row["input_ids"])
        for name in ("input_ids", "loss_starts", "loss_stops", "branch_roles", "branch_loss_spans", "rewards"):
            row[name] += item[name]
        row["loss_weights"] += item["loss_weights"]
        row["segment_starts"] += [begin + start for start in item["segment_starts"][1:]]
        row["segment_parents"] += [parent + first if parent >= 0 else -1 for parent in item["segment_parents"]]
        row["branch_segments"] += [first + segment for segment in item["branch_segments"]]
        size = len(item["branch_segments"])
        row["item_ids"] += [number] * size
        row["item_branches"].append(size)
        row["item_kinds"].append(item["item_kind"])
        for name in ITEM_VALUES:
            row[name].append(item[name])
        row["sample_ids"] += range(item["first_branch"], item["first_branch"] + size)
        row["sample_starts"] += [0] * size
        row["source_ids"] += [0] * size
    return row


def test_packs_are_the_items_that_the_plan_gives_them(packed: Path, items: list[dict[str, Any]]) -> None:
    plan, _ = read_plan(packed / "plan.arrow", check=True)
    assert plan.pieces.path_tokens is not None
    assert plan.pieces.work is not None
    is_whole = plan.pieces.depth == 2**31 - 1
    shards = rows_of(sorted(home(packed).glob("shards/*/*.arrow")))
    assert [row["pack_id"] for row in shards] == [*range(len(plan.packs))]
    kinds: set[int] = set()
    for row, (begin, end) in zip(shards, itertools.pairwise(plan.packs.offsets.tolist()), strict=True):
        pieces = plan.packs.pieces[begin:end]
        assert row["num_path_tokens"] == plan.pieces.path_tokens[pieces].sum()
        assert row["attention_work"] == plan.pieces.work[pieces].sum()
        assert row["num_tokens"] == plan.pieces.length[pieces].sum()
        members = plan.pieces.sample[pieces].tolist()
        if all(len(items[number]["branch_segments"]) == plan.pieces.num_branches[piece]
               and is_whole[piece] for number, piece in zip(members, pieces, strict=True)):  # fmt: skip
            kinds |= {items[number]["item_kind"] for number in members}
            for name, values in expected(items, members).items():
                np.testing.assert_array_equal(row[name], values, name)
    divided = np.bincount(plan.pieces.sample)
    assert divided[1] > 1
    assert kinds == {0, 1, 3}  # Of samples, pairs and turns, some are in packs of whole items.


@pytest.mark.parametrize("name", ["first_branch", "stop_branch", "depth", "loss_terms", "work", "path_tokens"])
def test_pieces_of_items_have_all_their_columns(packed: Path, name: str) -> None:
    plan, _ = read_plan(packed / "plan.arrow")
    columns = plan.pieces.columns()
    del columns[name]
    with pytest.raises(KeyError, match=name):
        Pieces.of(columns)


def test_rows_keep_the_rules_of_trees(packed: Path) -> None:
    for file in home(packed).glob("shards/*/*.arrow"):
        reader = pa.ipc.open_file(file.read_bytes())
        for batch in map(reader.get_batch, range(reader.num_record_batches)):
            columns = columns_of(batch)
            assert [find_wrong_items(row_of(columns, row)) for row in range(len(batch))] == [None] * len(batch)


def test_ranks_count_items_and_branches(packed: Path) -> None:
    rows = rows_of(sorted(home(packed).glob("shards/*/*.arrow")))
    iterations = rows_of([home(packed) / "ranks/epoch-000/iterations.arrow"])
    used: dict[int, set[int]] = {}
    for file in home(packed).glob("ranks/epoch-000/rank-*.arrow"):
        for row in rows_of([file]):
            used.setdefault(row["iteration"], set()).update({row["pack"]} - {-1})
    steps: dict[int, set[int]] = {}
    for number, iteration in enumerate(iterations):
        steps.setdefault(iteration["step"], set()).update(used[number])
        assert iteration["most_items"] == max(len(rows[pack]["item_kinds"]) for pack in used[number])
    for iteration in iterations:
        own = [rows[pack] for pack in steps[iteration["step"]]]
        assert iteration["global_num_items"] == sum(len(row["item_kinds"]) for row in own)
        assert iteration["global_num_samples"] == sum(len(row["sample_ids"]) for row in own)
        assert iteration["global_num_loss_tokens"] == sum(row["num_loss_tokens"] for row in own)
    manifest = json.loads((packed / "hbpack.json").read_text())
    assert sum(group["num_samples"] for group in manifest["groups"]) == sum(len(row["sample_ids"]) for row in rows)


def test_any_number_of_workers_gives_the_same_bytes(
    packed: Path, corpus: Path, words: list[object], tmp_path: Path
) -> None:
    done = hbpack("pack", corpus, *words, "--workers", 3, "--output", tmp_path / "out")
    assert done.code == 0, done.stderr
    assert tree(tmp_path / "out") == tree(packed)


def test_the_next_step_names_a_format_that_takes_trees(packed: Path) -> None:
    done = hbpack("write", packed)
    assert f'PackedDataset("{packed}", rank, 4, format="tree")' in done.stdout
    manifest = read_manifest(packed)
    assert '", rank, 4, format="tree")` reads it' in card_of(manifest, None, "me/pairs", None)
    flat = replace(manifest, counts=replace(manifest.counts, items=None))
    assert 'format="tree"' not in card_of(flat, None, "me/pairs", None)


MESSAGE = (
    "error: --index-only does not work with preference pairs, groups or --turns branch: it has no place for shared "
    "prefixes; leave it out\n"
)


def test_shards_without_tokens_are_refused(packed: Path, corpus: Path, words: list[object], tmp_path: Path) -> None:
    done = hbpack("pack", corpus, *words, "--index-only", "--output", tmp_path / "out")
    assert (done.code, done.stderr.splitlines(keepends=True)[-1]) == (2, MESSAGE)
    before = tree(packed)
    done = hbpack("write", packed, "--index-only")
    assert (done.code, done.stderr) == (2, MESSAGE)
    assert tree(packed) == before
