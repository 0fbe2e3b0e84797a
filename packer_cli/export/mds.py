"""MosaicML Streaming's MDS shards: `shard.00000.mds ...` and `index.json`, one sample of the format a pack.

Columns: `input_ids` ndarray:int32, `loss_mask` ndarray:int8, `cu_seqlens` ndarray:int32, `sample_ids` ndarray:int64,
`pack_id` and `group` int; in a set with weights `loss_weights` ndarray:float32, one for each token. hbpack writes the
files itself: the library requires transformers below 5 and xxhash below 4, so it cannot be installed beside hbpack; it
encodes sample by sample in Python, and cannot resume a killed run.

A shard: uint32 n, the number of samples; uint32[n+1], the offsets in the file at which each begins and the last ends;
the columns as JSON; then, for each sample, the sizes (uint32) of its values of variable size, and all values, columns
sorted by name. A one-dimensional ndarray is a byte (1 << 2 | k), its length as an unsigned integer of 2^k bytes, and
its items.
"""

from __future__ import annotations

import json
import struct
from itertools import compress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer_cli.engine.sink import FileRange, Sink
from packer_cli.export.job import Format, Int64Array, Job, Part, PartFacts
from packer_cli.format.arrays import Row
from packer_cli.format.loss_spans import WEIGHTS
from packer_cli.format.shards import row_of

_COLUMNS = {
    "cu_seqlens": "ndarray:int32",
    "group": "int",
    "input_ids": "ndarray:int32",
    "loss_mask": "ndarray:int8",
    "pack_id": "int",
    "sample_ids": "ndarray:int64",
}
"""Sorted by name, as the format requires."""

_WEIGHTED = dict(sorted({**_COLUMNS, WEIGHTS: "ndarray:float32"}.items()))
"""Columns of a set with weights."""


class Exporter(Format):
    """See the module."""

    shares_rows = False
    shard_size = 64 * 2**20
    """The library's own default: a node downloads a shard at a time."""

    most_shard_size = 2**31
    """The format counts in uint32, and a shard may exceed the requested size by one pack."""

    weight_bytes = 4

    def row_bytes(self, num_tokens: Int64Array, num_samples: Int64Array) -> Int64Array:
        """Count bytes of each row (int64[r]), with its offset in the shard's head, exactly but for weights."""
        return _row_sizes(_COLUMNS, num_tokens, num_samples) + 4

    def write_part(self, job: Job, part: Part, sink: Sink) -> PartFacts:
        """Write one shard."""
        rows = job.packs[part.first : part.stop]
        counts = (each[rows].astype(np.int64) for each in (job.packed.num_tokens, job.packed.num_samples))
        sizes = _row_sizes(_columns(job), *counts)
        config = json.dumps(_config(job), sort_keys=True).encode()
        first = 4 + 4 * (len(rows) + 1) + len(config)
        offsets = first + np.concatenate([[0], np.cumsum(sizes)])
        with sink.file(f"shard.{part.number:05d}.mds") as file:
            file.write(np.array([len(rows)], dtype="<u4"))
            file.write(offsets.astype("<u4"))
            file.write(config)
            for packs in job.batches(part.first, part.stop):
                columns = {name: job.packed.column(name, packs) for name in _columns(job)}
                file.write(b"".join(_encode(row_of(columns, i)) for i in range(len(packs))))
        return {"samples": len(rows)}

    def finish(self, job: Job, parts: list[PartFacts], ranges: list[FileRange], sink: Sink) -> None:
        """Write `index.json`, with the checksums (the format's `xxh128` is xxh3-128)."""
        shards = [
            {
                **_config(job),
                "samples": part["samples"],
                "raw_data": {"basename": range_.path, "bytes": range_.num_bytes, "hashes": {"xxh128": range_.xxh3}},
                "zip_data": None,
            }
            for part, range_ in zip(parts, ranges, strict=True)
        ]
        with sink.file("index.json") as file:
            file.write(json.dumps({"version": 2, "shards": shards}, sort_keys=True).encode())


def _columns(job: Job) -> dict[str, str]:
    return _WEIGHTED if job.is_weighted else _COLUMNS


def _config(job: Job) -> dict[str, Any]:
    columns = _columns(job)
    return {
        "version": 2,
        "format": "mds",
        "compression": None,
        "hashes": ["xxh128"],
        "size_limit": job.header["shard_size"],
        "column_names": list(columns),
        "column_encodings": list(columns.values()),
        "column_sizes": [8 if encoding == "int" else None for encoding in columns.values()],
    }


def _code(length: Int64Array) -> Int64Array:
    """Return the k for which the length is written in 2^k bytes."""
    return (length >= 1 << 8).astype(np.int64) + (length >= 1 << 16)


def _row_sizes(columns: dict[str, str], num_tokens: Int64Array, num_samples: Int64Array) -> Int64Array:
    """Count the encoded bytes of each row, int64[r]."""
    sizes = np.zeros_like(num_tokens)
    for name, encoding in columns.items():
        if encoding == "int":
            sizes += 8
            continue
        is_of_tokens = name in ("input_ids", "loss_mask", WEIGHTS)
        length = num_tokens if is_of_tokens else num_samples + (name == "cu_seqlens")
        width = np.dtype(encoding.removeprefix("ndarray:")).itemsize
        sizes += 4 + 1 + (1 << _code(length)) + length * width
    return sizes


def _encode(row: Row) -> bytes:
    """Encode a row."""
    is_array = [isinstance(value, np.ndarray) for value in row.values()]
    values = [
        _encode_array(value) if varies else struct.pack("<q", value)
        for value, varies in zip(row.values(), is_array, strict=True)
    ]
    sizes = np.array([*map(len, compress(values, is_array))], dtype="<u4")
    return b"".join([sizes.tobytes(), *values])


def _encode_array(items: NDArray[Any]) -> bytes:
    code = int(_code(np.array(len(items))))
    return bytes([1 << 2 | code]) + len(items).to_bytes(1 << code, "little") + items.tobytes()
