"""Plain Parquet: `part-00000.parquet ...`, one row a pack, the columns of the shards.

Ids are int32 and the loss is a mask (list<int8>), which other tools handle more easily than spans; in a set with
weights, `loss_weights` has one for each token, too; `checksum` is that
of the row here.

For other tools and archives: with Zstandard, it takes about half the space of the shards, but reading a single pack is
about a hundred times slower.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq

from packer_cli.engine.sink import Sink
from packer_cli.export.job import Format, Job, Part, PartFacts
from packer_cli.export.packed import MASK
from packer_cli.format.arrays import columns_of, list_of, to_arrow
from packer_cli.format.loss_spans import STARTS, STOPS
from packer_cli.format.schema import RowColumns, row_checksums

_ROWS_PER_GROUP = 1024

_MASK = pa.field(MASK, list_of(pa.int8()), nullable=False)


def schema_of(*, is_weighted: bool) -> pa.Schema:
    """Return the columns of a file; weights, of a set that has any, are of all tokens, 0 where there is no loss."""
    fields = RowColumns(is_weighted=is_weighted).shard(pa.int32())
    return pa.schema([_MASK if field.name == STARTS else field for field in fields if field.name != STOPS])


class Exporter(Format):
    """See the module."""

    hub_files = "part-*.parquet"
    weight_bytes = 4

    bytes_of = (5, 20, 64)
    """Before compression."""

    def write_part(self, job: Job, part: Part, sink: Sink) -> PartFacts:
        """Write one file."""
        schema = schema_of(is_weighted=job.is_weighted)
        with (
            sink.file(f"part-{part.number:05d}.parquet") as file,
            pq.ParquetWriter(pa.PythonFile(file, mode="w"), schema, compression="zstd") as writer,
        ):
            names = schema.names[:-1]
            for packs in job.batches(part.first, part.stop, _ROWS_PER_GROUP):
                columns = [to_arrow(job.packed.column(name, packs)) for name in names]
                checksums = row_checksums(columns_of(pa.record_batch(columns, names=names)))
                writer.write_batch(pa.record_batch([*columns, to_arrow(checksums)], schema=schema))
        return {}
