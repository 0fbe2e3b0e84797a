"""Plain Parquet: `part-00000.parquet ...`, one row a pack, the columns of the shards.

Ids are int32 and the loss is a mask (list<int8>), which other tools handle more easily than spans; `checksum` is that
of the row here.

For other tools and archives: with Zstandard, it takes about half the space of the shards, but reading a single pack is
about a hundred times slower.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from packer_cli.engine.sink import FileRange, Sink
from packer_cli.export.job import Format, Int64Array, Job, Part
from packer_cli.export.packed import LISTS, PackedSet
from packer_cli.format.arrays import to_arrow, to_lists
from packer_cli.format.loss_spans import STARTS, STOPS
from packer_cli.format.marks import row_checksums
from packer_cli.format.schema import shard_schema

_ROWS_PER_GROUP = 1024

_MASK = pa.field("loss_mask", pa.list_(pa.field("item", pa.int8(), nullable=False)), nullable=False)
SCHEMA = pa.schema(
    [_MASK if field.name == STARTS else field for field in shard_schema(pa.int32()) if field.name != STOPS]
)


class Exporter(Format):
    """See the module."""

    def row_bytes(self, num_tokens: Int64Array, num_samples: Int64Array) -> Int64Array:
        """Bytes of each row (int64[r]) before compression."""
        return 5 * num_tokens + 20 * num_samples + 64

    def write_part(self, job: Job, part: Part, sink: Sink) -> dict[str, Any]:
        """Write one file."""
        with (
            sink.file(f"part-{part.number:05d}.parquet") as file,
            pq.ParquetWriter(pa.PythonFile(file, mode="w"), SCHEMA, compression="zstd") as writer,
        ):
            for packs in job.batches(part.first, part.stop, _ROWS_PER_GROUP):
                writer.write_batch(_batch(job.packed, packs))
        return {}

    def finish(self, job: Job, parts: list[dict[str, Any]], ranges: list[FileRange], sink: Sink) -> None:
        """Writes nothing: the files are complete."""


def _batch(packed: PackedSet, packs: Int64Array) -> pa.RecordBatch:
    columns = []
    for name in SCHEMA.names[:-1]:
        if name in (*LISTS, _MASK.name):
            lists = packed.loss_mask(packs) if name == _MASK.name else packed.lists(name, packs)
            columns.append(to_lists(lists.offsets, lists.values))
        else:
            columns.append(to_arrow(packed.numbers(name, packs)))
    batch = pa.record_batch(columns, names=SCHEMA.names[:-1])
    return pa.record_batch([*columns, to_arrow(row_checksums(batch))], schema=SCHEMA)
