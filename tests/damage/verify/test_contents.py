"""Contents that are wrong although the checksums match, as a writer with a bug would leave them."""

from __future__ import annotations

import json
import re
import shutil
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from packer_cli.shards.plan_file import read_plan, read_plan_header, write_plan
from tests.damage.conftest import Packed, hbpack
from tests.damage.verify.report import RANK, damaged, shard_of, verify
from tests.loader.packed_set import row_checksum, update_checksums, write_ipc
from tests.reference import home, tree


def test_what_is_wrong_in_spite_of_checksums(own: Packed) -> None:
    """As a writer with an error would leave it: the checksums are those of the wrong bytes."""
    name = shard_of(own.folder, 1)
    fingerprint = json.loads((own.home / "hbpack.json").read_text())["fingerprint"]
    whole = tree(own.folder)
    rows = pa.ipc.open_file((own.home / name).read_bytes()).read_all()

    def change(column: str, value: Any, *, signs: bool = True) -> dict[str, str]:
        table = rows.to_pylist()
        row = table[2]
        row[column] = value(row[column])
        if signs:
            row["checksum"] = row_checksum(row)
        write_ipc(own.home, name, pa.Table.from_pylist(table, schema=rows.schema), 16, fingerprint)
        update_checksums(own.home)
        found = damaged(own.folder)
        assert set(found) == {name}
        return found[name].split(" ", 2)[2]

    def first_plus_1(values: list[int]) -> list[int]:
        return [values[0] + 1, *values[1:]]

    assert change("input_ids", first_plus_1) == "has other input_ids than the token store"
    assert change("loss_starts", first_plus_1) == "has other loss_starts than the token store"
    assert (
        change("loss_stops", lambda stops: [stops[0] - 1, *stops[1:]]) == "has other loss_stops than the token store"
    )
    assert change("sample_ids", first_plus_1) == "has other sample_ids than the plan"
    assert change("source_ids", first_plus_1) == "has other source_ids than the token store"
    found = change("loss_stops", lambda stops: stops[:-1])
    assert re.fullmatch(r"of loss_stops in packs \d+ to \d+ are not the token store's", found)
    lengths = change("sample_starts", lambda starts: [*starts, 0])
    assert re.fullmatch(r"of sample_starts in packs \d+ to \d+ are not the plan's", lengths)
    assert change("num_loss_tokens", lambda number: number + 1) == "has another num_loss_tokens than the plan"
    assert change("attention_work", lambda number: number + 1) == "has another attention_work than the plan"
    assert change("cp_sharding", lambda number: 1, signs=False) == "has another cp_sharding than the plan"
    assert change("checksum", lambda number: 1, signs=False) == "has another checksum than the plan"
    other = pa.ipc.open_file((own.home / RANK.replace("00000.arrow", "00001.arrow")).read_bytes()).read_all()
    write_ipc(own.home, RANK, other, 10_000, fingerprint)
    update_checksums(own.home)
    report = verify(own.folder)["damaged"]
    assert {damage["file"] for damage in report} == {name, RANK}
    assert report[0]["what"].endswith("are not the plan's")
    assert {damage["repair"] for damage in report} == {
        f"rm {own.home / 'hbpack.json'}, then hbpack write {own.folder}"
    }
    (own.home / "hbpack.json").unlink()
    assert hbpack("write", own.folder, "--shard-size", "65536").code == 0
    assert tree(own.folder) == whole
    write_ipc(own.home, RANK, other, 10_000, fingerprint)
    update_checksums(own.home)
    (own.home / "plan.arrow").unlink()
    found = damaged(own.folder)
    assert set(found) == {"plan.arrow", "ranks/epoch-000"}
    assert " times over all ranks, not once; " in found["ranks/epoch-000"]
    packs = pa.array([9999] * len(other), pa.int64())
    other = other.set_column(other.column_names.index("pack"), other.schema.field("pack"), packs)
    write_ipc(own.home, RANK, other, 10_000, fingerprint)
    update_checksums(own.home)
    assert damaged(own.folder)[RANK] == "it names packs that the set does not have"


@pytest.mark.parametrize(
    ("column", "change", "by_count"),
    [
        ("loss_starts", lambda starts: [0, *starts[1:]], False),
        ("loss_starts", lambda starts: [-1, *starts[1:]], False),
        ("loss_starts", lambda starts: [*starts[1::-1], *starts[2:]], False),
        ("loss_stops", lambda stops: [*stops[:-1], stops[-1] + 10_000], False),
        ("loss_starts", lambda starts: [starts[0] + 1, *starts[1:]], True),
    ],
)
def test_wrong_loss_spans_are_found_without_the_token_store_too(
    own: Packed, column: str, change: Any, by_count: bool
) -> None:
    name = shard_of(own.folder, 1)
    fingerprint = json.loads((own.home / "hbpack.json").read_text())["fingerprint"]
    rows = pa.ipc.open_file((own.home / name).read_bytes()).read_all()
    table = rows.to_pylist()
    row = table[2]
    row[column] = change(row[column])
    row["checksum"] = row_checksum(row)
    write_ipc(own.home, name, pa.Table.from_pylist(table, schema=rows.schema), 16, fingerprint)
    update_checksums(own.home)
    assert damaged(own.folder, "--fast") == {name: f"the loss spans of pack {row['pack_id']} are wrong"}
    if by_count:  # They keep the rules, but are not as many tokens as the plan says.
        return
    done = hbpack("show", own.folder, "--pack", row["pack_id"])
    assert done.code == 1
    assert done.stderr == (
        f"error: {str(own.home / name)!r} is damaged (its loss spans are wrong); run hbpack write, which "
        "writes it again\n"
    )
    done = hbpack("export", own.folder, "--to", "trl", "--output", own.folder.parent / "exported")
    assert done.code == 1
    assert done.stderr.splitlines()[-1] == (
        f"error: shard {str(own.home / name)!r} is damaged (the loss spans of pack {row['pack_id']} "
        "are wrong); run hbpack write again"
    )


@pytest.mark.parametrize(
    ("column", "change", "why"),
    [
        ("pack_id", lambda pack: pack + 1, "pack {} is not where it should be"),
        ("sample_ids", lambda ids: ids[1:], "the borders of its samples do not agree with its tokens"),
    ],
)
def test_a_pack_that_contradicts_itself_is_not_shown(own: Packed, column: str, change: Any, why: str) -> None:
    name = shard_of(own.folder, 1)
    fingerprint = json.loads((own.home / "hbpack.json").read_text())["fingerprint"]
    rows = pa.ipc.open_file((own.home / name).read_bytes()).read_all()
    table = rows.to_pylist()
    row = table[2]
    pack = row["pack_id"]
    row[column] = change(row[column])
    row["checksum"] = row_checksum(row)
    write_ipc(own.home, name, pa.Table.from_pylist(table, schema=rows.schema), 16, fingerprint)
    update_checksums(own.home)
    done = hbpack("show", own.folder, "--pack", pack)
    assert (done.code, done.stderr) == (
        1,
        (
            f"error: {str(own.home / name)!r} is damaged ({why.format(pack)}); run hbpack write, which "
            "writes it again\n"
        ),
    )


def test_files_of_another_shape_in_spite_of_checksums(own: Packed) -> None:
    name = shard_of(own.folder)
    fingerprint = json.loads((own.home / "hbpack.json").read_text())["fingerprint"]

    def change(path: str, rows: Callable[[pa.Table], pa.Table], in_batch: int = 16) -> str:
        whole = (own.home / path).read_bytes()
        write_ipc(own.home, path, rows(pa.ipc.open_file(whole).read_all()), in_batch, fingerprint)
        update_checksums(own.home)
        found = damaged(own.folder)
        done = hbpack("export", own.folder, "--to", "parquet", "--output", own.folder.parent / "exported")
        assert (done.code, done.stdout) == (1, "")
        assert str(own.home / path) in done.stderr
        (own.home / path).write_bytes(whole)
        update_checksums(own.home)
        assert set(found) == {path}
        return found[path]

    num_packs = pa.ipc.open_file((own.home / name).read_bytes()).read_all().num_rows
    assert num_packs > 16
    assert change(name, lambda table: table.drop_columns("cost")) == "it has other columns"
    assert change(name, lambda table: table.slice(0, 16)) == f"it does not hold its {num_packs} packs"
    assert change(name, lambda table: table, in_batch=8) == "its record batch 0 has 8 packs"
    assert change(RANK, lambda table: table.drop_columns("pack")) == "it has other columns"
    (own.home / RANK).write_bytes(b"x" * 1000)
    (own.home / name).write_bytes(b"neither")
    update_checksums(own.home)
    assert damaged(own.folder) == {RANK: "Not an Arrow file", name: "File is too small: 7"}


def test_a_shard_that_other_tools_cannot_read(own: Packed) -> None:
    """A column of another length than its record batch, which the loader does not look at."""
    file = own.home / shard_of(own.folder)
    data, lengths = file.read_bytes(), struct.pack("<qqqq", 16, 0, 16, 0)
    assert lengths in data
    file.write_bytes(data.replace(lengths, struct.pack("<qqqq", 16, 0, 17, 0), 1))
    update_checksums(own.home)
    assert damaged(own.folder) == {
        shard_of(own.folder): "record batch 0 cannot be read: Array length did not match record batch length"
    }


def test_plans_that_are_wrong_in_spite_of_checksums(own: Packed, others: Path) -> None:
    path = own.home / "plan.arrow"
    whole = path.read_bytes()
    plan, loss_tokens = read_plan(path)
    header = read_plan_header(path)
    sample = plan.pieces.sample
    twice = replace(plan, pieces=replace(plan.pieces, samples=np.where(sample == sample[3], sample[4], sample)))
    write_plan(path, twice, loss_tokens, header)
    update_checksums(own.home)
    assert damaged(own.folder) == {"plan.arrow": "the pieces do not begin each sample as often as asked"}
    shutil.rmtree(own.folder / "tokens")
    assert set(damaged(own.folder)) == {"plan.arrow"}
    path.write_bytes((home(others) / "plan.arrow").read_bytes())
    update_checksums(own.home)
    assert damaged(own.folder) == {"plan.arrow": "it is not the plan of the shards beside it"}
    path.write_bytes(whole)
    update_checksums(own.home)
    assert damaged(own.folder) == {}
