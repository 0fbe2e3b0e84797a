"""Every message about rank manifests and shards, whole."""

from __future__ import annotations

import json
import re
from typing import Any

import pyarrow as pa
import pytest
import torch

from packer_cli.errors import FormatError
from packer_cli.loader import PackedDataset
from tests.loader.errors.messages import REMEDY, message
from tests.loader.packed_set import SHARD_SCHEMA, write_set


def with_column(table: pa.Table, name: str, values: list[int]) -> pa.Table:
    place = table.column_names.index(name)
    return table.set_column(place, table.schema.field(name), pa.array(values, table.schema.field(name).type))


class RankFile:
    """A file of the rank manifests, and what the loader says where it holds something else."""

    def __init__(self, packed: Any, name: str) -> None:
        self.packed, self.name, self.file = packed, name, packed.path / name
        self.whole = self.file.read_bytes()
        self.table = pa.ipc.open_file(self.whole).read_all()
        self.start, self.end = f"{str(self.file)!r} is damaged (", f"); {REMEDY}"

    def error_with(self, changed: pa.Table) -> str:
        """The message for another table, with checksums as they should be."""
        self.packed.rewrite(self.name, changed)
        return message(FormatError, self.packed.path)


def test_what_ranks_have_in_common(own_set: Any) -> None:
    own = RankFile(own_set, "ranks/epoch-000/iterations.arrow")
    name, file, whole, table, rewrite = own.name, own.file, own.whole, own.table, own.error_with
    start, end, n = own.start, own.end, own.table.num_rows
    epochs = json.loads((own_set.path / "hbpack.json").read_text())["epochs"]
    num_steps = epochs[0]["num_steps"]
    for number in (num_steps - 1, num_steps + 1):
        own_set.edit_manifest(epochs=[{**epochs[0], "num_steps": number}, *epochs[1:]])
        assert message(FormatError, own_set.path) == f"{start}its steps are not 0 to {number - 1} in order{end}"
    own_set.edit_manifest(epochs=epochs)
    assert rewrite(table.slice(0, n - 1).combine_chunks()) == f"{start}{n - 1} iterations, hbpack.json says {n}{end}"
    wrong_steps = f"{start}its steps are not 0 to {num_steps - 1} in order{end}"
    assert rewrite(with_column(table, "step", [0] * n)) == wrong_steps
    assert rewrite(with_column(table, "step", list(range(n, 0, -1)))) == wrong_steps
    assert rewrite(table.drop_columns("step")) == f"{start}it has other columns{end}"
    own_set.rewrite(name, table)
    assert file.read_bytes() == whole
    file.unlink()
    assert message(FormatError, own_set.path) == f"{str(file)!r} is missing; {REMEDY}"


def test_rank_manifests(own_set: Any) -> None:
    own = RankFile(own_set, "ranks/epoch-000/rank-00000.arrow")
    name, file, whole, table, rewrite = own.name, own.file, own.whole, own.table, own.error_with
    start, end, n = own.start, own.end, own.table.num_rows
    packs, group = table["pack"].to_pylist(), table["group"].to_pylist()
    assert n > 3
    wrong_iterations = f"{start}its iterations are not 0 to {n - 1} in order{end}"
    assert rewrite(table.slice(0, n - 1).combine_chunks()) == wrong_iterations
    assert rewrite(with_column(table, "iteration", [0] * n)) == wrong_iterations
    for pack in (10**6, -2):
        wrong_packs = f"{start}it names packs that the set does not have{end}"
        assert rewrite(with_column(table, "pack", [pack, *packs[1:]])) == wrong_packs
    for number in (99, -1):
        wrong_groups = f"{start}it names groups that the set does not have{end}"
        assert rewrite(with_column(table, "group", [number, *group[1:]])) == wrong_groups
    groups = [(16, 1, 20), (32, 1, 20)]
    two = RankFile(write_set(own_set.path.parent / "two", groups, num_gpus=2, num_epochs=1), name)
    swapped = with_column(two.table, "group", [1 - g for g in two.table["group"].to_pylist()])
    assert two.error_with(swapped) == f"{two.start}it names packs of other groups{two.end}"
    assert rewrite(pa.concat_tables([table, table.slice(n - 1)]).combine_chunks()) == (
        f"{start}it has several micro-batches in an iteration, though the GPUs run in lockstep{end}"
    )
    assert rewrite(with_column(table, "first_gpu", [1] * n)) == (
        f"{start}rank 0 has no part in some of its iterations{end}"
    )
    assert rewrite(table.drop_columns("group")) == f"{start}it has other columns{end}"
    own_set.rewrite(name, table)
    assert file.read_bytes() == whole
    file.write_bytes((own_set.path / "ranks/epoch-000/rank-00001.arrow").read_bytes())
    assert message(FormatError, own_set.path) == f"{start}it is a copy of ranks/epoch-000/rank-00001.arrow{end}"
    assert message(FormatError, own_set.path, verify="none") == (
        f"{start}it is a copy of ranks/epoch-000/rank-00001.arrow{end}"
    )
    other = write_set(own_set.path.parent / "other", [(32, 1, 20)], num_gpus=2, num_epochs=1, fingerprint="fp-1")
    file.write_bytes((other.path / name).read_bytes())
    assert message(FormatError, own_set.path) == f"{start}it belongs to another set, fp-1, not to fp-0{end}"
    with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_file(sink, table.schema.remove_metadata()) as writer:
        writer.write_table(table)
    assert message(FormatError, own_set.path) == f"{start}it does not say which set it belongs to{end}"
    file.write_bytes(whole[:100])
    assert message(FormatError, own_set.path).startswith(start)
    file.unlink()
    assert message(FormatError, own_set.path) == f"{str(file)!r} is missing; {REMEDY}"


def read_error(packed: Any) -> str:
    ds = PackedDataset(packed.path, 0, 2)
    with pytest.raises(FormatError) as error:
        ds[0]
    return str(error.value)


def test_shards(own_set: Any) -> None:
    shard = own_set.path / "shards/g0-32-sp1/shard-00000.arrow"
    data = shard.read_bytes()
    start, end = f"shard {str(shard)!r} is damaged (", f"); {REMEDY}"
    shard.write_bytes(data[:-8])
    n = len(data)
    assert read_error(own_set) == f"{start}{n - 8} bytes, hbpack.json says {n}{end}"
    shard.write_bytes(b"x" * n)
    assert read_error(own_set) == f"{start}Not an Arrow file{end}"
    other = write_set(own_set.path.parent / "other", [(32, 1, 20)], num_gpus=2, num_epochs=1, fingerprint="fp-1")
    shard.write_bytes((other.path / "shards/g0-32-sp1/shard-00000.arrow").read_bytes())
    assert read_error(own_set) == f"{start}it belongs to another set, fp-1, not to fp-0{end}"
    shard.unlink()
    assert read_error(own_set) == f"shard {str(shard)!r} is missing; {REMEDY}"
    groups = json.loads((own_set.path / "hbpack.json").read_text())["groups"]
    own_set.edit_manifest(groups=[{**groups[0], "shards": []}])
    rank = own_set.path / "ranks/epoch-000/rank-00000.arrow"
    assert message(FormatError, own_set.path) == (
        f"{str(rank)!r} is damaged (it names packs that the set does not have); {REMEDY}"
    )


def test_shards_whose_schema_is_damaged(own_set: Any) -> None:
    """One bit of a column's name, or of its type: in Arrow's metadata integers are type 2, booleans type 6."""
    shard = own_set.path / "shards/g0-32-sp1/shard-00000.arrow"
    data = shard.read_bytes()
    footer = len(data) - 10 - int.from_bytes(data[-10:-6], "little")
    wanted = PackedDataset(own_set.path, 0, 2)[0]["input_ids"]
    flips = [(data.index(name.encode(), footer), 128) for name in SHARD_SCHEMA.names]
    flips += [(at, 4) for at in range(footer, len(data)) if data[at] == 2]
    reasons = set()
    for at, bit in flips:
        shard.write_bytes(data[:at] + bytes([data[at] ^ bit]) + data[at + 1 :])
        try:
            assert torch.equal(PackedDataset(own_set.path, 0, 2)[0]["input_ids"], wanted)
        except FormatError as error:
            reasons.add(str(error).partition("damaged (")[2])
    assert any(reason.startswith("it has other columns)") for reason in reasons)


def test_shards_of_another_shape(own_set: Any) -> None:
    name = "shards/g0-32-sp1/shard-00000.arrow"
    shard = own_set.path / name
    table = pa.ipc.open_file(shard.read_bytes()).read_all()

    def rewrite(changed: pa.Table) -> str:
        own_set.rewrite(name, changed)
        ds = PackedDataset(own_set.path, 0, 2)
        with pytest.raises(FormatError) as error:
            list(ds)
        return str(error.value)

    start, end = f"shard {str(shard)!r} is damaged (", f"); {REMEDY}"
    assert rewrite(table.drop_columns("cu_seqlens")) == f"{start}it has other columns{end}"
    assert rewrite(table.drop_columns("checksum")) == f"{start}it has other columns{end}"
    assert re.fullmatch(re.escape(start) + r"no row [1-9]\d*" + re.escape(end), rewrite(table.slice(0, 1)))
    first, second = table.slice(0, 1), table.slice(1, 1)
    assert rewrite(pa.concat_tables([second, first, table.slice(2)])) in (
        f"{start}row 0 holds pack 1, not 0{end}",
        f"{start}row 1 holds pack 0, not 1{end}",
    )
