"""Shards read by their bytes: what pyarrow reads, and a plain word where they are not as a shard should be."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from packer_cli.errors import FormatError
from packer_cli.format.shards import Pack, ShardFile
from packer_cli.loader import PackedDataset
from tests.loader import naive
from tests.loader.packed_set import SHARD_SCHEMA

COLUMNS = Pack._fields[: Pack._fields.index("loss_weights")]
LISTS = ("input_ids", "loss_starts", "loss_stops", "cu_seqlens", "sample_ids")


def shards(packed: Any) -> list[Path]:
    return sorted((packed.path / "shards").rglob("*.arrow"))


def open_shard(source: pa.NativeFile) -> ShardFile:
    return ShardFile(source, SHARD_SCHEMA)


def as_read(pack: Pack | None) -> tuple | None:
    if pack is None:
        return None
    return tuple(value if isinstance(value := getattr(pack, name), int) else value.tolist() for name in COLUMNS)


def test_packs_are_what_pyarrow_reads(packed: Any) -> None:
    for path in shards(packed):
        file = open_shard(pa.memory_map(str(path)))
        wanted = naive.read_packs(str(path), COLUMNS)
        for order in (range(len(wanted)), reversed(range(len(wanted)))):
            for row in order:
                assert as_read(file.read(row)) == wanted[row]
        assert file.read(len(wanted)) is None
        assert file.read(len(wanted) + 1000) is None
        pack = file.read(0)
        assert pack is not None
        assert [str(getattr(pack, name).dtype) for name in LISTS] == ["uint16", "int32", "int32", "int32", "int64"]
        assert not any(getattr(pack, name).flags.writeable for name in LISTS)


def test_views_outlive_the_file(packed: Any, tmp_path: Path) -> None:
    path = tmp_path / "shard.arrow"
    path.write_bytes(shards(packed)[0].read_bytes())
    pack = open_shard(pa.memory_map(str(path))).read(1)
    path.unlink()
    assert as_read(pack) == naive.read_packs(str(shards(packed)[0]), COLUMNS)[1]


def rewritten(packed: Any, path: Path, change: Any, **options: Any) -> ShardFile:
    with pa.memory_map(str(shards(packed)[0])) as opened:
        table = change(pa.ipc.open_file(opened).read_all().combine_chunks())
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema, **options) as writer:
        writer.write_table(table, max_chunksize=16)
    return open_shard(pa.memory_map(str(path)))


def test_what_is_no_shard(packed: Any, tmp_path: Path) -> None:
    path = tmp_path / "shard.arrow"

    def cast(table: pa.Table, name: str, kind: pa.DataType) -> pa.Table:
        values = pa.nulls(len(table), kind).fill_null(0) if pa.types.is_integer(kind) else table[name].cast(kind)
        return table.set_column(table.column_names.index(name), name, values)

    def with_order(table: pa.Table) -> pa.Table:
        return table.select([*reversed(table.column_names)])

    changes = [lambda table: table.drop_columns("loss_starts"), with_order]
    for name, kind in (
        ("input_ids", pa.list_(pa.int64())),
        ("input_ids", pa.int32()),
        ("loss_stops", pa.list_(pa.int8())),
        ("pack_id", pa.int32()),
    ):
        changes.append(lambda table, name=name, kind=kind: cast(table, name, kind))
    for change in changes:
        with pytest.raises(FormatError, match=r"^it has other columns$"):
            rewritten(packed, path, change)
    compressed = rewritten(packed, path, lambda table: table, options=pa.ipc.IpcWriteOptions(compression="lz4"))
    with pytest.raises(FormatError, match=r"^record batch 0 cannot be read: it is compressed, or not a record batch$"):
        compressed.read(0)
    empty = rewritten(packed, path, lambda table: table.slice(0, 0))
    assert empty.read(0) is None


def test_flipped_bits_of_the_metadata(packed: Any) -> None:
    """Of each record batch and of the footer: the packs that were written, or an error that the reader expects."""
    path = shards(packed)[0]
    data, wanted = path.read_bytes(), naive.read_packs(str(path), COLUMNS)
    whole = open_shard(pa.BufferReader(data))
    assert whole.num_batches > 1
    footer = len(data) - 10 - int.from_bytes(data[-10:-6], "little")
    places = [*range(footer, len(data))]
    for offset, size, _ in whole._blocks:
        places += range(offset, offset + size)
    errors: Counter[str] = Counter()
    for bit in range(0, 8 * len(places), 5):
        damaged = bytearray(data)
        damaged[places[bit // 8]] ^= 1 << bit % 8
        try:
            file = open_shard(pa.BufferReader(damaged))
            for row in range(0, len(wanted), 7):
                pack = file.read(row)
                if pack is None or pack.pack_id != wanted[row][COLUMNS.index("pack_id")]:
                    errors["another row"] += 1  # Which the reader compares with the manifest.
                    break
                file.check(row, pack)
                assert as_read(pack) == wanted[row]
        except (FormatError, pa.ArrowException, OSError, UnicodeDecodeError) as error:
            errors[str(error).partition("cannot be read: ")[2] or type(error).__name__] += 1
    reasons = (
        "its buffers are not aligned",
        "it is compressed, or not a record batch",
        "it was written by Arrow before 0.15",
    )
    assert {*reasons, "it lacks buffers", "another row", "OSError"} <= errors.keys()
    assert any(why.startswith("unpack_from requires a buffer of at least ") for why in errors)


def test_a_shard_that_is_cut_short_while_it_is_open(packed: Any, tmp_path: Path) -> None:
    """Without the check, reading what is gone ends the process with SIGBUS."""
    shutil.copytree(packed.path, tmp_path / "out")
    data = PackedDataset(tmp_path / "out", 0, packed.num_gpus)
    data[0]
    names = {}
    for path in shards(SimpleNamespace(path=tmp_path / "out")):
        names[path] = path.stat().st_size
        os.truncate(path, 5000)
    with pytest.raises(FormatError) as caught:
        [data[number] for number in range(1, len(data))]
    assert str(caught.value) in {
        f"shard {str(path)!r} is damaged (cut short to 5000 bytes while it was open, hbpack.json says "
        f"{size}); run hbpack write, which writes it again"
        for path, size in names.items()
    }
