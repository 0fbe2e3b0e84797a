"""Formats of Parquet files: plain, with the columns of the shards, and NeMo's packed sequences."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from packer_cli.engine.sink import Sink, WrittenFile
from packer_cli.export.job import Format, Int64Array, Job, Part, PartFacts
from packer_cli.export.packed import MASK, pad_samples, shifted
from packer_cli.format.arrays import Lists, columns_of, list_of, to_arrow
from packer_cli.format.checksums import CHECKSUM, row_checksums
from packer_cli.format.loss_spans import STARTS, STOPS
from packer_cli.format.schema import RowColumns

_ROWS_PER_GROUP = 1024

_MASK = pa.field(MASK, list_of(pa.int8()), nullable=False)


def schema_of(*, is_weighted: bool) -> pa.Schema:
    """Return the columns of a file; weights, of a set that has any, are of all tokens, 0 where there is no loss."""
    fields = RowColumns(is_weighted=is_weighted).shard(pa.int32())
    return pa.schema([_MASK if field.name == STARTS else field for field in fields if field.name != STOPS])


class Plain(Format):
    """Plain Parquet: `part-00000.parquet ...`, one row a pack, the columns of the shards.

    Ids are int32 and the loss is a mask (list<int8>), which other tools handle more easily than spans; in a set with
    weights, `loss_weights` has one for each token, too; `checksum` is that of the row here.

    For other tools and archives: with Zstandard, it takes about half the space of the shards, but reading a single
    pack is about a hundred times slower.
    """

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
            place = schema.get_field_index(CHECKSUM)
            names = schema.remove(place).names
            for packs in job.batches(part.first, part.stop, _ROWS_PER_GROUP):
                columns = [to_arrow(job.packed.column(name, packs)) for name in names]
                checksums = row_checksums(columns_of(pa.record_batch(columns, names=names)))
                columns.insert(place, to_arrow(checksums))
                writer.write_batch(pa.record_batch(columns, schema=schema))
        return {}


_NEMO_ROWS_PER_GROUP = 16
_NEMO_COLUMNS = {"input_ids": pa.int32(), "loss_mask": pa.int8(), "seq_start_id": pa.int32()}
_NEMO = pa.schema([pa.field(name, list_of(item), nullable=False) for name, item in _NEMO_COLUMNS.items()])


class Nemo(Format):
    """NeMo's packed sequences, which Megatron-Bridge reads: `training-00000.idx.parquet ...`, `_metadata.json`.

    One row a pack: `input_ids` list<int32>; `loss_mask` list<int8>, shifted one token earlier than in the shards
    because NeMo aligns it with the labels (1 if the *next* token is trained on); `seq_start_id` list<int32>, the first
    token of each sample. NeMo's inputs are all tokens of a sample except the last, its labels all except the first.

    Where the plan aligns samples to N (`--align`), each is padded with the end-of-text token until its inputs are a
    multiple of N. This is how Megatron-Bridge pads for its `pad_seq_to_mult`: from the trailing end-of-text tokens, it
    finds out what is padding. As inputs have a token less, no row outgrows the capacity.

    Row groups are small, because a reader decodes a whole one for each row that it needs.
    """

    def write_part(self, job: Job, part: Part, sink: Sink) -> PartFacts:
        """Write one file; returns figures for `_metadata.json`, which count input tokens (all but a sample's last)."""
        longest = 0
        given = []
        with (
            sink.file(f"training-{part.number:05d}.idx.parquet") as file,
            pq.ParquetWriter(pa.PythonFile(file, mode="w"), _NEMO, compression="zstd") as writer,
        ):
            for packs in job.batches(part.first, part.stop, 64 * _NEMO_ROWS_PER_GROUP):
                batch, most, row_inputs = _batch(job, packs)
                given.append(row_inputs)
                longest = max(longest, most)
                writer.write_table(pa.Table.from_batches([batch]), row_group_size=_NEMO_ROWS_PER_GROUP)
        inputs = np.concatenate(given)
        return {
            "dataset_max_seqlen": longest - 1,
            "max_samples_per_bin": int(job.packed.num_samples[job.packs[part.first : part.stop]].max()),
            "min_packed_seqlen": int(inputs.min()),
            "num_given": int(inputs.sum(dtype=np.int64)),
        }

    def finish(self, job: Job, parts: list[PartFacts], files: list[WrittenFile], sink: Sink) -> None:
        """Write `_metadata.json`, for `pad_cu_seqlens`. Readers of Parquet folders skip names with an underscore."""
        num_rows = len(job.packs)
        given = sum(part["num_given"] for part in parts)
        described = {
            "dataset_max_seqlen": max(part["dataset_max_seqlen"] for part in parts),
            "max_samples_per_bin": max(part["max_samples_per_bin"] for part in parts),
            "packing_factor": round(int(job.row_samples().sum(dtype=np.int64)) / num_rows, 2),
            "packing_efficiency": round(given / num_rows / job.capacity * 100, 2),
            "pack_size": job.capacity,
            "min_packed_seqlen": min(part["min_packed_seqlen"] for part in parts),
        }
        with sink.file("_metadata.json") as file:
            file.write((json.dumps([described], indent=2) + "\n").encode())


def _batch(job: Job, packs: Int64Array) -> tuple[pa.RecordBatch, int, Int64Array]:
    """Make the rows of these packs; return also the longest sample's length, and the inputs of each row (int64[k])."""
    packed = job.packed
    lengths = packed.sample_lengths(packs)
    # All tokens but the last are inputs, and these are aligned.
    inputs = job.aligned(Lists(lengths.offsets, lengths.values - np.int32(1)), packs)
    sizes = Lists(lengths.offsets, inputs.values + np.int32(1))
    end_of_text = job.manifest.tokenizer.eos_token_id
    pad = job.manifest.pad_token_id if end_of_text is None else int(end_of_text)
    ids = pad_samples(packed.lists("input_ids", packs), lengths, sizes, pad)
    mask = pad_samples(packed.loss_mask(packs), lengths, sizes, 0)
    num_samples = np.diff(sizes.offsets)
    starts = np.cumsum(sizes.values, dtype=np.int64) - sizes.values - np.repeat(ids.offsets[:-1], num_samples)
    columns = [
        to_arrow(ids),
        to_arrow(shifted(mask, 0)),
        to_arrow(Lists(sizes.offsets, starts.astype(np.int32))),
    ]
    return pa.record_batch(columns, schema=_NEMO), int(sizes.values.max()), np.diff(ids.offsets) - num_samples
