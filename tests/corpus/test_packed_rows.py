"""Rows that hold several samples are split again, as their writers packed them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packer_cli.corpus.records.token_rows import TokenRecord, read_records
from tests.naive.packed_rows import samples_of

from .helpers import read_all, samples, write_jsonl

ROW: dict[str, Any] = {"input_ids": [5, 6, 7, 8, 9]}
COUNTS = "it is 0 for padding and 1 for tokens, or counts the samples of a packed row from 1"
PADDED: dict[str, Any] = {"input_ids": [5, 6, 7, 0, 0]}


@pytest.mark.parametrize(
    "borders",
    [
        {"seq_lengths": [2, 3]},
        {"position_ids": [0, 1, 0, 1, 2]},
        {"attention_mask": [1, 1, 2, 2, 2]},
        {"seq_lengths": [2, 3], "position_ids": [0, 1, 0, 1, 2], "attention_mask": [1] * 5},
    ],
)
def test_a_row_is_split_where_its_samples_meet(borders: dict[str, Any]) -> None:
    record = {**ROW, **borders, "labels": [-100, 6, -100, 8, 9]}
    batch, rejects = read_records([TokenRecord(3, record)])
    assert not rejects
    assert [each[1:] for each in samples(batch)] == [(3, [5, 6], [False, True]), (3, [7, 8, 9], [False, True, True])]


def test_padding_belongs_to_no_sample() -> None:
    record = {**PADDED, "attention_mask": [1, 2, 2, 0, 0], "position_ids": [0, 0, 1, 0, 0]}
    batch, rejects = read_records([TokenRecord(3, record)])
    assert not rejects
    assert [each.input_ids for each in samples(batch)] == [[5], [6, 7]]


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        ({"seq_lengths": [2, 2]}, '"seq_lengths" must be above 0 and add up to the 5 entries of "input_ids"'),
        ({"seq_lengths": [0, 5]}, '"seq_lengths" must be above 0 and add up to the 5 entries of "input_ids"'),
        ({"seq_lengths": []}, '"seq_lengths" must be above 0 and add up to the 5 entries of "input_ids"'),
        (
            {"seq_lengths": [2**62] * 4 + [5]},
            '"seq_lengths" must be above 0 and add up to the 5 entries of "input_ids"',
        ),
        ({"position_ids": [0, 1]}, '"position_ids" has 2 entries but "input_ids" has 5; they must be equal'),
        (
            {"position_ids": [0, 1, 3, 4, 0]},
            "position_ids[2] is 3; positions count up by 1, from 0 in each sample",
        ),
        (
            {"position_ids": [1, 2, 3, 4, 5]},
            "position_ids[0] is 1; positions count up by 1, from 0 in each sample",
        ),
        (
            {"attention_mask": [1, 1, 3, 3, 3]},
            f"attention_mask[2] is 3; {COUNTS}",
        ),
        (
            {"attention_mask": [1, 1, 1, 1, -1]},
            f"attention_mask[4] is -1; {COUNTS}",
        ),
        (
            {"seq_lengths": [2, 3], "position_ids": [0, 1, 2, 0, 1]},
            '"seq_lengths" and "position_ids" disagree on whether a sample begins at input_ids[2]',
        ),
    ],
)
def test_rows_that_contradict_themselves_are_rejected(columns: dict[str, Any], expected: str) -> None:
    good = {**ROW, "attention_mask": [1] * 5}
    batch, rejects = read_records([TokenRecord(1, good), TokenRecord(2, {**ROW, **columns}), TokenRecord(3, good)])
    assert rejects == [(2, expected)]
    assert [(each.line, each.input_ids) for each in samples(batch)] == [(1, ROW["input_ids"]), (3, ROW["input_ids"])]


def test_ids_are_those_of_the_tokenizer_but_for_padding() -> None:
    padded = {"input_ids": [9, 4, 10], "attention_mask": [1, 1, 0]}
    records = [padded, {"input_ids": [9, 10]}, {"input_ids": [3, 10, 11], "seq_lengths": [1, 2]}, {"input_ids": [0]}]
    batch, rejects = read_records([TokenRecord(line, record) for line, record in enumerate(records)], 10)
    assert [(each.line, each.input_ids) for each in samples(batch)] == [(0, [9, 4]), (3, [0])]
    rule = "input_ids[1] is 10; the tokenizer's ids are 0 to 9"
    assert sorted(rejects) == [(1, rule), (2, rule)]


@st.composite
def rows(draw: st.DrawFn) -> dict[str, Any]:
    """A packed row with some of the columns, often as they should be."""
    lengths = draw(st.lists(st.integers(1, 4), min_size=0, max_size=4))
    total = sum(lengths)
    ids = draw(st.lists(st.integers(0, 3), min_size=total, max_size=total))
    columns = {
        "labels": [draw(st.sampled_from([-100, each])) for each in ids],
        "completion_mask": [draw(st.integers(0, 1)) for _ in ids],
        "seq_lengths": lengths,
        "position_ids": [place for length in lengths for place in range(length)],
        "attention_mask": [number for number, length in enumerate(lengths, 1) for _ in range(length)],
    }
    if draw(st.booleans()):
        columns["attention_mask"] = [draw(st.sampled_from([1, 1, 1, 0])) for _ in ids]
    record = {"input_ids": ids, **{name: columns[name] for name in draw(st.sets(st.sampled_from(sorted(columns))))}}
    if draw(st.integers(0, 4)) == 0:
        column = record[draw(st.sampled_from(sorted(record)))]
        if column and draw(st.booleans()):
            column[draw(st.integers(0, len(column) - 1))] = draw(st.integers(-1, 3))
        else:
            column.append(draw(st.integers(0, 2)))
    return record


@settings(deadline=None)
@given(records=st.lists(rows(), min_size=1, max_size=5))
def test_many_rows_at_once_are_as_each_alone(records: list[dict[str, Any]]) -> None:
    batch, rejects = read_records([TokenRecord(line, record) for line, record in enumerate(records)])
    found: list[Any] = [[] for _ in records]
    for each in samples(batch):
        found[each.line].append((each.input_ids, [bool(bit) for bit in each.loss_mask]))
    for reject in rejects:
        found[reject.line] = None
    assert found == [samples_of(record) for record in records]


def test_a_row_keeps_its_line_in_every_format(tmp_path: Path) -> None:
    records = [{**ROW, "seq_lengths": [2, 3]}, {**ROW, "seq_lengths": [1, 4]}]
    expected = [(1, [5, 6]), (1, [7, 8, 9]), (2, [5]), (2, [6, 7, 8, 9])]
    table = pa.Table.from_pylist(records)
    with pa.ipc.new_file(str(tmp_path / "a.arrow"), table.schema) as writer:
        writer.write_table(table)
    for path in (tmp_path / "a.arrow", write_jsonl(tmp_path / "a.jsonl", records)):
        documents, rejects = read_all(path, are_single=False)
        assert not rejects
        assert [(each.line, each.input_ids) for each in documents] == expected


@pytest.mark.slow
def test_what_trl_packed_is_unpacked(tmp_path: Path) -> None:
    trl = pytest.importorskip("trl")
    datasets.disable_progress_bars()
    records = [
        {
            "input_ids": list(range(n, 2 * n)),
            "completion_mask": [int(i > 2) for i in range(n)],
            "attention_mask": [1] * n,
        }
        for n in range(3, 40)
    ]
    packed = trl.pack_dataset(datasets.Dataset.from_list(records), seq_length=64, strategy="bfd")
    assert len(packed) < len(records) / 2
    packed.save_to_disk(str(tmp_path / "set"))
    documents, rejects = read_all(tmp_path / "set", are_single=False)
    assert not rejects
    found = sorted((each.input_ids, each.loss_mask) for each in documents)
    assert found == sorted((each["input_ids"], list(map(bool, each["completion_mask"]))) for each in records)


def test_what_axolotl_packed_is_unpacked(tmp_path: Path) -> None:
    """Axolotl's collator for packed samples multiplies each mask by the sample's number, and pads the row."""
    records = [{"input_ids": list(range(n, 2 * n)), "labels": [-100, *range(n + 1, 2 * n)]} for n in (3, 5, 7)]
    ids, labels, mask, positions = [], [], [], []
    for number, record in enumerate(records, 1):
        ids += record["input_ids"]
        labels += record["labels"]
        mask += [number] * len(record["input_ids"])
        positions += range(len(record["input_ids"]))
    pad = 20 - len(ids)
    row = {
        "input_ids": ids + [0] * pad,
        "labels": labels + [-100] * pad,
        "attention_mask": mask + [0] * pad,
        "position_ids": positions + list(range(pad)),
    }
    datasets.disable_progress_bars()
    datasets.Dataset.from_list([row] * 3).save_to_disk(str(tmp_path / "set"))
    documents, rejects = read_all(tmp_path / "set", are_single=False)
    assert not rejects
    found = [
        (each.input_ids, [a if bit else -100 for a, bit in zip(each.input_ids, each.loss_mask, strict=True)])
        for each in documents
    ]
    assert found == [(each["input_ids"], each["labels"]) for each in records] * 3
