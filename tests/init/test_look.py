"""The look at a sample of an input."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq

from packer_cli.corpus import blocks
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
