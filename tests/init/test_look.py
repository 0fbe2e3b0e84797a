"""The look at a sample of an input."""

from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from packer_cli.corpus import blocks, sample
from packer_cli.init.look import Sampler


def _write_arrow(path, table):
    with pa.ipc.new_file(path, table.schema) as writer:
        writer.write_table(table, max_chunksize=2)


def test_tables_without_records(tmp_path):
    table = pa.table({"text": pa.array([], pa.string())})
    pq.write_table(table, tmp_path / "a.parquet")
    _write_arrow(tmp_path / "a.arrow", table)
    for name in ("a.parquet", "a.arrow"):
        look = Sampler(None).look(str(tmp_path / name))
        assert (look.num_records, look.lengths, look.rejects) == (0, [], [])


def test_the_rest_of_a_table_is_not_read(tmp_path, monkeypatch):
    """Neither its fingerprint nor a checksum is taken."""
    _write_arrow(tmp_path / "a.arrow", pa.table({"text": ["lorem ipsum"] * 10}))
    monkeypatch.setattr(blocks, "fingerprint", None)
    monkeypatch.setattr(blocks, "file_checksum", None)
    assert Sampler(None).look(str(tmp_path / "a.arrow")).shapes == {"text": 10}


def test_places_are_all_over_a_file(tmp_path, monkeypatch):
    """Sorted data: short texts first, and many more of them than at the end, in whatever format."""
    monkeypatch.setattr(sample, "SAMPLE_BYTES", 64 << 10)
    monkeypatch.setattr(sample, "PLACE_BYTES", 4 << 10)
    rows = [{"text": "lorem ipsum " * (1 + number // 40)} for number in range(3000)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "a.json").write_text(json.dumps(rows))
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet", row_group_size=100)
    for name in ("a.jsonl", "a.json", "a.parquet"):
        look = Sampler(None).look(str(tmp_path / name))
        assert look.num_records == pytest.approx(3000, rel=0.15), name
        assert min(look.lengths) < 60 < 200 < max(look.lengths), name
        assert not look.rejects


def test_records_that_begin_at_a_border_of_places_are_read_once(tmp_path, monkeypatch):
    monkeypatch.setattr(sample, "PLACE_BYTES", 60)
    for length in range(13, 40):
        line = json.dumps({"text": "x" * (length - 13)}) + "\n"
        assert len(line) == length
        (tmp_path / "a.jsonl").write_text(line * 50)
        assert Sampler(None).look(str(tmp_path / "a.jsonl")).num_records == pytest.approx(50)


def test_ids_that_the_tokenizer_lacks_are_rejected(tmp_path, repo):
    (tmp_path / "a.jsonl").write_text('{"input_ids": [5, 6]}\n{"input_ids": [5, 70000]}\n')
    look = Sampler(str(repo / "examples/sample/tokenizer")).look(str(tmp_path / "a.jsonl"))
    assert look.lengths == [2]
    (reject,) = look.rejects
    assert ":2: input_ids[1] is 70000; the tokenizer's ids are" in reject
