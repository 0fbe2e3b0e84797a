"""Sets with trees on disk: which formats and arguments read them, and which are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from packer_cli.errors import ConfigError, FormatError
from packer_cli.format.trees import PAIR, SAMPLE
from packer_cli.loader import PackedDataset, metadata_of
from tests.loader.packed_set import PackedSet
from tests.loader.trees import FLAT_FORMATS, PAIRS, items_of_steps, write_pairs
from tests.tree_sets import put_trees
from tests.trees import Branch, Item


@pytest.fixture
def trees(tmp_path: Path) -> PackedSet:
    """Two GPUs, four packs of pairs, and an iteration of fillers."""
    return write_pairs(tmp_path / "set", [PAIRS[: 1 + i % 3] for i in range(4)], num_gpus=2)


@pytest.mark.parametrize("format", ["tree", "tree-flex", "pairs"])
def test_formats_of_trees_read_them(trees: PackedSet, format: str) -> None:
    seen, counts = 0, items_of_steps(trees, 1)
    for rank in range(2):
        dataset = PackedDataset(trees.path, rank, 2, epoch=1, format=format, pad_to_multiple_of=8)
        for batch in DataLoader(dataset, batch_size=None, num_workers=1):
            known = metadata_of(batch)
            assert known["pack_id"] >= 0 or len(known["item_ids"]) == 0
            assert (known["most_items"], known["global_num_items"]) == (3, counts[known["step"]])
            assert known["num_loss_tokens"] == int(known["sample_num_loss_tokens"].sum())
            assert known["item_kinds"].tolist() == [PAIR] * (len(known["branch_roles"]) // 2)
            assert metadata_of(dict(batch))["cu_seqlens"] is known["cu_seqlens"]  # A framework may copy the keys.
            assert batch["input_ids"].shape[1] % 8 == 0
            seen += len(known["item_kinds"])
    assert seen == sum(1 + i % 3 for i in range(4))


def message(trees: PackedSet, **options: Any) -> str:
    with pytest.raises(ConfigError) as error:
        PackedDataset(trees.path, 0, 2, **options)
    return str(error.value).removeprefix(repr(str(trees.path)))


@pytest.mark.parametrize("format", FLAT_FORMATS)
def test_other_formats_do_not(trees: PackedSet, format: str) -> None:
    assert message(trees, format=format) == (
        f" has preference pairs, groups or turns, which share prefixes, and format {format!r} has no place for these: "
        "choose format 'tree', 'tree-flex' or, for preference pairs, 'pairs'"
    )


def test_arguments_that_would_break_trees(trees: PackedSet) -> None:
    begin = " cannot be read in format 'tree': "
    for options in ({"mask": "causal"}, {"reset_positions": False}, {"max_segments": 9}):
        assert message(trees, format="tree", **options) == begin + (
            "it takes mask 'document', positions by depth and as many segments as there are: leave mask, "
            "reset_positions and max_segments out"
        )
    assert message(trees, format="tree", sp_sharding="zigzag") == begin + (
        "sp_sharding is 'zigzag', which is for context parallelism: leave it out"
    )
    assert message(trees, format="pairs", pad_to="capacity") == (
        " cannot be read in format 'pairs': pad_to is 'capacity', but rows without shared prefixes may be longer than "
        "that: use 'multiple'"
    )
    groups = json.loads((trees.path / "hbpack.json").read_text())["groups"]
    of_cp = "it was planned with context parallelism, whose ranks would each see a part of a tree: plan it with SP"
    of_align = "it was planned with --align, and segments cannot be padded: plan it without"
    for changes, why in (({"cp_size": 2, "sp_size": 1}, of_cp), ({"align": 8}, of_align)):
        trees.edit_manifest(groups=[{**group, **changes} for group in groups])
        assert message(trees, format="tree") == begin + why


def test_a_flat_set_is_no_set_of_trees(own_set: PackedSet) -> None:
    assert message(own_set, format="tree") == (
        " holds plain samples, and format 'tree' is for preference pairs, groups and turns: choose format "
        "'transformers' or another, or pack with --items pairs or groups, or --turns branch"
    )
    assert message(own_set, format="pairs") == (
        " holds plain samples, and format 'pairs' is for preference pairs alone: choose format 'transformers' or "
        "another, or pack with --items pairs"
    )


def test_a_shard_without_trees_is_damaged(own_set: PackedSet) -> None:
    """Its rows must not pass for padding."""
    counts = json.loads((own_set.path / "hbpack.json").read_text())["counts"]
    own_set.edit_manifest(counts=counts | {"items": {}})
    with pytest.raises(FormatError, match=r"shard '\S+' is damaged \(it has other columns\); run hbpack write"):
        list(PackedDataset(own_set.path, 0, 2, format="tree"))


def test_a_row_of_other_items_is_no_row_of_pairs(trees: PackedSet) -> None:
    put_trees(trees.path, [[*PAIRS, Item(SAMPLE, [Branch([1, 2], [(1, 2)])], 9)]] * 4)
    message = "holds other records beside its preference pairs, and only pairs are trained on here"
    with pytest.raises(ConfigError, match=message):
        PackedDataset(trees.path, 0, 2, format="pairs")
    with pytest.raises(ConfigError, match=message):
        PackedDataset(trees.path, 0, 2, format="tree").require_pairs()
    batch = next(b for b in PackedDataset(trees.path, 0, 2, format="tree") if b["pack_id"] >= 0)
    assert batch["item_kinds"].tolist() == [PAIR, PAIR, PAIR, SAMPLE]
    assert torch.equal(batch["item_branches"], torch.tensor([2, 2, 2, 1]))


def test_weights_of_pairs_are_ignored_only_on_request(trees: PackedSet) -> None:
    """No loss of pairs takes them."""
    groups = json.loads((trees.path / "hbpack.json").read_text())["groups"]
    trees.edit_manifest(groups=[{**group, "loss_weight": 1.5} for group in groups])
    with pytest.raises(ConfigError) as error:
        PackedDataset(trees.path, 0, 2, format="tree").require_pairs()
    assert str(error.value).removeprefix(repr(str(trees.path))) == (
        " has loss weights, and losses of pairs count all pairs alike: leave weight out of the records, or pass "
        "loss_weights=False to PackedDataset to ignore them; trainers take such a data set, too"
    )
    PackedDataset(trees.path, 0, 2, format="tree", loss_weights=False).require_pairs()
