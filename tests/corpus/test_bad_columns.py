"""A bad record in a table is rejected with a reason, as it is in JSON lines, and the others are kept."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from .helpers import read_all, write_jsonl

IDS = pa.list_(pa.int32())
TABLES = {
    "an empty list": pa.table({"input_ids": pa.array([[1, 2, 3], [], [7, 8]], IDS)}),
    "a negative id": pa.table({"input_ids": pa.array([[1], [5, -1], [7]], pa.list_(pa.int64()))}),
    "two columns": pa.table({"input_ids": pa.array([[1], [], [7]], IDS), "loss_mask": pa.array([[1], [], [0]], IDS)}),
    "null beside a list": pa.table(
        {"input_ids": pa.array([[1], [5, 6], [7]], IDS), "labels": pa.array([None, [5], [7]], IDS)}
    ),
}


def as_file(table: pa.Table, path: Path) -> None:
    with pa.ipc.new_file(str(path), table.schema) as writer:
        writer.write_table(table)


def as_saved(table: pa.Table, path: Path) -> None:
    import datasets

    datasets.disable_progress_bars()
    datasets.Dataset(table).save_to_disk(str(path))


WRITERS = {"a.parquet": pq.write_table, "a.arrow": as_file, "saved": as_saved}


@pytest.mark.parametrize("what", TABLES)
@pytest.mark.parametrize("name", WRITERS)
def test_a_bad_row_is_rejected_as_in_json_lines(tmp_path: Path, name: str, what: str) -> None:
    WRITERS[name](TABLES[what], tmp_path / name)
    documents, rejects = read_all(tmp_path / name)
    expected, same = read_all(write_jsonl(tmp_path / "a.jsonl", TABLES[what].to_pylist()))
    assert rejects == same
    assert [reject.line for reject in rejects] == [2]
    assert [document.line for document in documents] == [document.line for document in expected] == [1, 3]
    assert [list(document.input_ids) for document in documents] == [list(document.input_ids) for document in expected]
