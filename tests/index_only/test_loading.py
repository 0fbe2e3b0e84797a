"""The loader gathers packs from the token store: the same batches as from shards that hold tokens."""

from __future__ import annotations

import pickle
import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from torch.utils.data import DataLoader

from packer_cli.errors import ConfigError, FormatError
from packer_cli.format.entries import PartInfo
from packer_cli.format.shards import ShardFile
from packer_cli.format.token_parts import TokenParts
from packer_cli.loader import PackedDataset
from tests.reference import home, store_parts


def is_same(first: Any, second: Any) -> bool:
    if isinstance(first, torch.Tensor):
        return torch.equal(first, second)
    if isinstance(first, dict):
        return first.keys() == second.keys() and all(is_same(first[key], second[key]) for key in first)
    return bool(first == second)


def batches(dataset: PackedDataset) -> list[Any]:
    return [dataset[i] for i in range(len(dataset))]


@pytest.mark.parametrize("verify", ["lazy", "full", "none"])
def test_batches_are_those_of_written_shards(written, indexed, verify):
    for rank in range(8):
        pairs = zip(
            batches(PackedDataset(written, rank, 8, verify=verify)),
            batches(PackedDataset(indexed, rank, 8, verify=verify)),
            strict=True,
        )
        assert all(is_same(first, second) for first, second in pairs)


def test_cut_samples_are_among_them(indexed):
    """Guards against the assertions above passing vacuously."""
    dataset = PackedDataset(indexed, 0, 8)
    files = {part["path"] for part in dataset.manifest["tokens"]}
    assert files == {path.relative_to(indexed).as_posix() for path in store_parts(indexed)}
    assert len(files) == 1
    assert dataset.manifest["counts"]["split"] > 0
    assert dataset.manifest["config"]["write"]["index_only"]


def test_workers_and_pickles_read_the_same(indexed):
    dataset = PackedDataset(indexed, 3, 8)
    expected = batches(dataset)
    again = pickle.loads(pickle.dumps(dataset))
    assert all(map(is_same, batches(again), expected))
    loaded = DataLoader(dataset, batch_size=None, num_workers=2, collate_fn=lambda batch: batch)
    assert all(map(is_same, loaded, expected))


def test_few_parts_stay_open(indexed, monkeypatch):
    monkeypatch.setattr("packer_cli.format.token_parts.PARTS_KEPT", 1)
    assert batches(PackedDataset(indexed, 0, 8))


def test_no_flipped_byte_reaches_a_trainer(own):
    """Neither one of the token store nor one of the index."""
    expected = [batches(PackedDataset(own, rank, 8)) for rank in (0, 4)]
    rng = random.Random(0)
    num_found = 0
    for path in [*home(own).glob("tokens/*.arrow"), *home(own).glob("shards/*/*.arrow")]:
        data = path.read_bytes()
        for _ in range(12):
            damaged = bytearray(data)
            damaged[rng.randrange(len(damaged))] ^= 1 << rng.randrange(8)
            path.write_bytes(damaged)
            for rank, right in zip((0, 4), expected, strict=True):
                try:
                    found = batches(PackedDataset(own, rank, 8))
                except FormatError as error:
                    num_found += 1
                    assert "\n" not in str(error)  # noqa: PT017 - the others are not errors
                else:  # A byte that the rank does not read.
                    assert all(map(is_same, found, right))
        path.write_bytes(data)
    assert num_found > 10


def test_a_store_that_is_gone(own):
    part = home(own) / store_parts(own)[0].relative_to(own)
    data = part.read_bytes()
    part.unlink()
    with pytest.raises(FormatError, match=r"shard .* is damaged \(token part 0 is missing"):
        PackedDataset(own, 0, 8)[0]
    with pytest.raises(FormatError) as error:
        PackedDataset(own, 0, 8, verify="full")
    assert str(error.value) == f"token store part {str(part)!r} is missing; run hbpack pack again"
    part.write_bytes(data[:-8])
    with pytest.raises(FormatError, match=f"{len(data) - 8} bytes, hbpack.json says {len(data)}"):
        PackedDataset(own, 0, 8)[0]


def test_remote_sets_are_refused(own):
    with pytest.raises(ConfigError) as caught:
        PackedDataset(f"file://{own}", 0, 8)
    assert str(caught.value) == (
        f"'file://{own}' was written with --index-only, so it is read from a local folder; copy it there, or write it "
        "again with hbpack write --no-index-only"
    )


def parts_of(folder, num_samples):
    """The token store of a set of one part, as if it had so many samples."""
    path = store_parts(folder)[0].relative_to(folder).as_posix()
    part = PartInfo(path=path, num_bytes=0, xxh3="0" * 32, num_samples=num_samples)
    return TokenParts(lambda part: pa.memory_map(str(folder / part.path)), [part])


def test_samples_that_are_not_those_of_the_index(indexed):
    number = PackedDataset(indexed, 0, 8).manifest["tokens"][0]["num_samples"]
    for sample, expected, why in (
        (-1, number, "it names samples that the token store does not have"),
        (number, number, "it names samples that the token store does not have"),
        (number, number + 1, f"token part 0 has {number} samples, not {number + 1}"),
        (2, number, "sample 2 of token part 0 is shorter than planned"),
    ):
        parts = parts_of(indexed, expected)
        with pytest.raises(FormatError) as error:
            parts.gather(np.array([sample]), np.array([0], np.int32), np.array([10**6], np.int32))
        assert str(error.value) == why


def test_rows_that_are_not_of_samples(indexed):
    """An index whose checksums would be right."""
    table = pa.ipc.open_file(min(home(indexed).glob("shards/*/*.arrow")).read_bytes()).read_all()
    of_none = {"cu_seqlens": [0], "sample_ids": [], "sample_starts": []}
    for names, why in (
        (("sample_ids",), "row 0 has other numbers of samples than of borders"),
        (("sample_ids", "sample_starts"), "row 0 has other numbers of samples than of borders"),
        (of_none, "its samples cannot be gathered from the token store (need at least one array to concatenate)"),
    ):
        changed = table
        for name in names:
            place, field = table.column_names.index(name), table.schema.field(name)
            values = pa.array([of_none[name]] * len(table), type=field.type)
            changed = changed.set_column(place, field, values)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_file(sink, changed.schema) as writer:
            writer.write_table(changed, max_chunksize=16)
        with pytest.raises(FormatError) as error:
            ShardFile(pa.BufferReader(sink.getvalue()), table.schema, parts_of(indexed, 1)).read(0)
        assert str(error.value) == why
