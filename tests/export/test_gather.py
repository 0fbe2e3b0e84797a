"""Gathering and cutting, against plain Python."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packer_cli.engine.local import LocalEngine
from packer_cli.export import job
from packer_cli.export.job import cut_parts
from packer_cli.export.packed import LISTS, NUMBERS, PackedSet
from packer_cli.shards.manifest import read_manifest
from tests.export.conftest import export, options_of
from tests.reference import home, tree


def test_any_packs_in_any_order(packed, packs):
    manifest = read_manifest(home(packed))
    opened = PackedSet(home(packed), manifest, [0, 1], LocalEngine(2), ())
    rng = np.random.default_rng(5)
    for wanted in (
        np.arange(len(packs)),
        rng.permutation(len(packs)),
        rng.integers(0, len(packs), 500),
        np.array([3]),
    ):
        rows = [packs[pack] for pack in wanted]
        for name, dtype in LISTS.items():
            if name == "loss_weights":
                continue  # The set has none.
            found = opened.lists(name, wanted)
            assert found.values.dtype == dtype
            assert np.array_equal(found.values, np.concatenate([row[name] for row in rows]))
            assert np.array_equal(np.diff(found.offsets), [len(row[name]) for row in rows])
        found = opened.loss_mask(wanted)
        assert found.values.dtype == np.int8
        assert np.array_equal(found.values, np.concatenate([row["loss_mask"] for row in rows]))
        assert np.array_equal(np.diff(found.offsets), [len(row["loss_mask"]) for row in rows])
        for name in NUMBERS:
            assert opened.column(name, wanted).tolist() == [row[name] for row in rows]
        lengths = opened.sample_lengths(wanted)
        assert np.array_equal(lengths.values, np.concatenate([np.diff(row["cu_seqlens"]) for row in rows]))
        assert np.array_equal(np.diff(lengths.offsets), [len(row["sample_ids"]) for row in rows])


@given(st.lists(st.integers(1, 50), min_size=1, max_size=40), st.integers(1, 200))
def test_parts_are_even_and_hold_every_row(sizes, shard_size):
    row_bytes = np.array(sizes, dtype=np.int64)
    parts = cut_parts(row_bytes, shard_size, "")
    assert [row for part in parts for row in range(part.first, part.stop)] == list(range(len(sizes)))
    for number, part in enumerate(parts):
        assert part.number == number
        assert part.first < part.stop
    if len(parts) > 1:
        average = sum(sizes) / max(1, round(sum(sizes) / shard_size))
        assert max(sum(sizes[part.first : part.stop]) for part in parts) < average + 2 * max(sizes)


@pytest.mark.parametrize("name", ["megatron", "mds", "xtuner"])
def test_the_size_of_batches_changes_no_byte(packed, exported, tmp_path, monkeypatch, name):
    """Formats without record batches of their own: what is held in memory at a time cannot be seen."""
    monkeypatch.setattr(job, "TOKENS_PER_BATCH", 3000)
    output = tmp_path / "dir"
    assert export(packed, name, output, *options_of(name)).code == 0
    found, expected = tree(output), tree(exported(name))
    for files in (found, expected):  # These name the folder.
        files.pop("packs/paths.json", None)
        files.pop(".hbpack-export.json")
    assert found == expected
