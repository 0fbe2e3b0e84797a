"""Shards read by their bytes: what pyarrow reads, and a plain word where they are not as a shard should be."""

from __future__ import annotations

import os
import shutil
import struct
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from packer_cli.errors import FormatError
from packer_cli.format.shards import COLUMNS, Pack, ShardFile
from packer_cli.loader import PackedDataset
from tests.loader import naive

LISTS = ("input_ids", "loss_starts", "loss_stops", "cu_seqlens", "sample_ids")


def shards(packed: Any) -> list[Path]:
    return sorted((packed.path / "shards").rglob("*.arrow"))


def as_read(pack: Pack | None) -> tuple | None:
    if pack is None:
        return None
    return tuple(value if isinstance(value := getattr(pack, name), int) else value.tolist() for name in COLUMNS)


def test_packs_are_what_pyarrow_reads(packed: Any) -> None:
    for path in shards(packed):
        file = ShardFile(pa.memory_map(str(path)))
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
    pack = ShardFile(pa.memory_map(str(path))).read(1)
    path.unlink()
    assert as_read(pack) == naive.read_packs(str(shards(packed)[0]), COLUMNS)[1]


def test_columns_in_another_order_and_more_of_them(packed: Any, tmp_path: Path) -> None:
    """As another program would write it: buffers are found by the schema, whatever stands between them."""
    source = shards(packed)[0]
    with pa.memory_map(str(source)) as opened:
        table = pa.ipc.open_file(opened).read_all().combine_chunks()
    names = [*reversed(table.column_names)]
    table = table.select(names).add_column(
        2, "note", pa.array([None if i % 3 else f"row {i}" for i in range(table.num_rows)])
    )
    path = tmp_path / "shard.arrow"
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=16)
    file = ShardFile(pa.memory_map(str(path)))
    wanted = naive.read_packs(str(source), COLUMNS)
    assert [as_read(file.read(row)) for row in range(len(wanted))] == wanted


def rewritten(packed: Any, path: Path, change: Any, **options: Any) -> ShardFile:
    with pa.memory_map(str(shards(packed)[0])) as opened:
        table = change(pa.ipc.open_file(opened).read_all().combine_chunks())
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema, **options) as writer:
        writer.write_table(table, max_chunksize=16)
    return ShardFile(pa.memory_map(str(path)))


def test_what_is_no_shard(packed: Any, tmp_path: Path) -> None:
    path = tmp_path / "shard.arrow"
    with pytest.raises(FormatError, match=r"^it lacks columns$"):
        rewritten(packed, path, lambda table: table.drop_columns("loss_starts"))

    def cast(table: pa.Table, name: str, kind: pa.DataType) -> pa.Table:
        values = pa.nulls(len(table), kind).fill_null(0) if pa.types.is_integer(kind) else table[name].cast(kind)
        return table.set_column(table.column_names.index(name), name, values)

    ids = "list<item: uint16 not null> or list<item: int32 not null>"
    for name, kind, why in (
        ("input_ids", pa.list_(pa.int64()), f"is list<item: int64>, not {ids}"),
        ("input_ids", pa.int32(), f"is int32, not {ids}"),
        ("loss_stops", pa.list_(pa.int8()), "is list<item: int8>, not list<item: int32 not null>"),
        ("pack_id", pa.int32(), "is int32, not int64"),
    ):  # fmt: skip
        with pytest.raises(FormatError, match=f"^its column {name} {why}$"):
            rewritten(packed, path, lambda table, name=name, kind=kind: cast(table, name, kind))
    assert as_read(rewritten(packed, path, lambda table: cast(table, "input_ids", pa.list_(pa.int32()))).read(0))
    compressed = rewritten(packed, path, lambda table: table, options=pa.ipc.IpcWriteOptions(compression="lz4"))
    with pytest.raises(FormatError, match=r"^record batch 0 cannot be read: it is compressed, or not a record batch$"):
        compressed.read(0)
    empty = rewritten(packed, path, lambda table: table.slice(0, 0))
    assert empty.read(0) is None


def test_flipped_bits_of_the_metadata(packed: Any) -> None:
    """Of each record batch and of the footer: the packs that were written, or an error that the reader expects."""
    path = shards(packed)[0]
    data, wanted = path.read_bytes(), naive.read_packs(str(path), COLUMNS)
    whole = ShardFile(pa.BufferReader(data))
    assert whole.num_batches > 1
    footer = len(data) - 10 - int.from_bytes(data[-10:-6], "little")
    places = [*range(footer, len(data))]
    for number in range(whole.num_batches):
        offset, size = struct.unpack_from("<qi", whole._footer, whole._blocks + 24 * number)
        places += range(offset, offset + size)
    errors: Counter[str] = Counter()
    for bit in range(0, 8 * len(places), 5):
        damaged = bytearray(data)
        damaged[places[bit // 8]] ^= 1 << bit % 8
        try:
            file = ShardFile(pa.BufferReader(damaged))
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
    assert {*reasons, "it lacks buffers", "another row", "OSError", "UnicodeDecodeError"} <= errors.keys()
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
        f"shard {str(path)!r} is damaged or incomplete (cut short to 5000 bytes while it was open, hbpack.json says "
        f"{size}); run hbpack write, which rewrites damaged files"
        for path, size in names.items()
    }
