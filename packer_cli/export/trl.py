"""A data set as TRL's packing makes it: `datasets.load_from_disk(DIR)`, one row a pack.

`input_ids` list<int32>; `labels` list<int32>, -100 where there is no loss, which is always so at the first token of a
sample; `seq_lengths` list<int32>, from which TRL's collator makes position ids that begin anew with each sample.
The files are those of `Dataset.save_to_disk`: Arrow streams, `state.json`, `dataset_info.json`.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pyarrow as pa

from packer_cli.arrays import to_lists
from packer_cli.export.job import Format, Int64Array, Job, Part, Piece, Sink
from packer_cli.export.packed import PackedSet
from packer_cli.files import fingerprint

_ROWS_PER_BATCH = 1000
_NO_LOSS = -100


def _list(item: pa.DataType) -> pa.DataType:
    return pa.list_(pa.field("item", item))


SCHEMA = pa.schema([(name, _list(pa.int32())) for name in ("input_ids", "labels", "seq_lengths")])


class Exporter(Format):
    """See the module."""

    def row_bytes(self, num_tokens: Int64Array, num_samples: Int64Array) -> Int64Array:
        """Two numbers a token, one a sample."""
        return 8 * num_tokens + 4 * num_samples + 16

    def write_part(self, job: Job, part: Part, sink: Sink) -> dict[str, Any]:
        """One Arrow stream."""
        path = f"data-{part.number:05d}-of-{len(job.parts):05d}.arrow"
        with sink.part(path) as file, pa.ipc.new_stream(pa.PythonFile(file, mode="w"), SCHEMA) as writer:
            for packs in job.batches(part.first, part.stop, _ROWS_PER_BATCH):
                writer.write_batch(_batch(job.packed, packs))
        return {}

    def finish(self, job: Job, parts: list[dict[str, Any]], pieces: list[Piece], sink: Sink) -> None:
        """What `load_from_disk` looks for."""
        state: dict[str, Any] = {
            "_data_files": [{"filename": piece.path} for piece in pieces],
            "_fingerprint": fingerprint([piece.xxh3 for piece in pieces])[:16],
            "_format_columns": None,
            "_format_kwargs": {},
            "_format_type": None,
            "_output_all_columns": False,
            "_split": "train",
        }
        info = {"citation": "", "description": "", "homepage": "", "license": ""}
        for name, value in (("state.json", state), ("dataset_info.json", info)):
            with sink.file(name) as file:
                file.write((json.dumps(value, indent=2) + "\n").encode())


def _batch(packed: PackedSet, packs: Int64Array) -> pa.RecordBatch:
    ids, mask = packed.lists("input_ids", packs), packed.lists("loss_mask", packs)
    lengths = packed.sample_lengths(packs)
    labels = np.where(mask.values != 0, ids.values, np.int32(_NO_LOSS))
    columns = [
        to_lists(ids.offsets, ids.values).cast(SCHEMA.field("input_ids").type),
        to_lists(mask.offsets, labels).cast(SCHEMA.field("labels").type),
        to_lists(lengths.offsets, lengths.values).cast(SCHEMA.field("seq_lengths").type),
    ]
    return pa.record_batch(columns, schema=SCHEMA)
