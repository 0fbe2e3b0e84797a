"""A bad record in a table is rejected with a reason, as it is in JSON lines, and the others are kept."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from packaging.version import Version

from .helpers import CHAT, read_all, write_jsonl

NEEDS_ARROW_25 = pytest.mark.skipif(
    Version(pa.__version__) < Version("25"), reason="earlier versions of pyarrow cannot read any row of the batch"
)
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


def chats(answers: pa.Array, path: Path) -> Path:
    """An Arrow file with a chat for each value, which the answer holds."""
    roles, contents = ([word for _ in answers for word in pair] for pair in (("user", "assistant"), ("Hi", "Ho")))
    places = pa.array([place for row in range(len(answers)) for place in (None, row)], pa.int32())
    turns = pa.StructArray.from_arrays(
        [pa.array(roles), pa.array(contents), answers.take(places)], ["role", "content", "x"]
    )
    messages = pa.ListArray.from_arrays(pa.array(range(0, len(turns) + 1, 2), pa.int32()), turns)
    as_file(pa.table({"messages": messages}), path)
    return path


@pytest.mark.parametrize(
    ("kind", "value", "reason"),
    [
        (pa.timestamp("s"), 1 << 60, "Python int too large to convert to C int"),  # OverflowError
        (pa.duration("s"), 1 << 60, "Python int too large to convert to C int"),
        (pa.timestamp("us"), 1 << 62, "date value out of range"),
        (pa.timestamp("ns", "Asia/Tokyo"), (1 << 63) - 1, "Converting "),  # ValueError
    ],
)
def test_values_that_python_cannot_hold_cost_their_row(tmp_path, kind, value, reason) -> None:
    path = chats(pa.array([5, value, 7], pa.int64()).view(kind), tmp_path / "a.arrow")
    documents, rejects = read_all(path)
    assert [document.line for document in documents] == [1, 3]
    assert [reject.line for reject in rejects] == [2]
    assert rejects[0].reason.startswith(f'column "messages" cannot be read: {reason}')


@NEEDS_ARROW_25
def test_a_time_zone_that_does_not_exist_costs_the_rows_with_times(tmp_path) -> None:
    path = chats(pa.array([5, None], pa.int64()).view(pa.timestamp("s", "Foo/Bar")), tmp_path / "a.arrow")
    documents, rejects = read_all(path)
    assert [document.line for document in documents] == [2]
    assert [reject.line for reject in rejects] == [1]
    assert rejects[0].reason.startswith('column "messages" cannot be read: ')


@pytest.mark.parametrize("kind", [pytest.param(pa.string_view(), marks=NEEDS_ARROW_25), pa.large_string()])
def test_entries_of_a_dictionary_may_be_of_any_kind(tmp_path, kind) -> None:
    """Polars writes categories with string views, which Arrow cannot take by their numbers."""
    texts = pa.DictionaryArray.from_arrays(pa.array([1, None, 0, 1], pa.int8()), pa.array(["Hi", "Ho"], kind))
    as_file(pa.table({"text": texts}), tmp_path / "a.arrow")
    documents, rejects = read_all(tmp_path / "a.arrow")
    assert [(document.line, document.text) for document in documents] == [(1, "Ho"), (3, "Hi"), (4, "Ho")]
    assert [reject.line for reject in rejects] == [2]


def test_runs_of_equal_rows_are_as_many_records(tmp_path) -> None:
    chat = CHAT["messages"]
    runs = pa.RunEndEncodedArray.from_arrays(pa.array([2, 3], pa.int32()), pa.array([chat, chat[1:]]))
    as_file(pa.table({"messages": runs}), tmp_path / "a.arrow")
    documents, rejects = read_all(tmp_path / "a.arrow")
    assert not rejects
    assert [document.messages for document in documents] == [chat, chat, chat[1:]]
