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
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer_cli.engine.sink import FileRange, Sink
from packer_cli.export.job import Format, Int64Array, Job, Part, PartFacts
from packer_cli.format.arrays import Lists
from packer_cli.format.loss_spans import WEIGHTS

_COLUMNS = {
    "cu_seqlens": "ndarray:int32",
    "group": "int",
    "input_ids": "ndarray:int32",
    "loss_mask": "ndarray:int8",
    "pack_id": "int",
    "sample_ids": "ndarray:int64",
}
"""Sorted by name, as the format requires. The last must be an ndarray of at least 4 bytes, see `_put_array`."""

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
        return _sizes(_COLUMNS, num_tokens, num_samples)[1] + 4

    def write_part(self, job: Job, part: Part, sink: Sink) -> PartFacts:
        """Write one shard."""
        rows = job.packs[part.first : part.stop]
        _, sizes = _sizes_of(job, rows)
        config = json.dumps(_config(job), sort_keys=True).encode()
        first = 4 + 4 * (len(rows) + 1) + len(config)
        offsets = first + np.concatenate([[0], np.cumsum(sizes)])
        with sink.file(f"shard.{part.number:05d}.mds") as file:
            file.write(np.array([len(rows)], dtype="<u4"))
            file.write(offsets.astype("<u4"))
            file.write(config)
            for packs in job.batches(part.first, part.stop):
                file.write(_encode(job, packs))
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


def _length_of(name: str, num_tokens: Int64Array, num_samples: Int64Array) -> Int64Array:
    if name in ("input_ids", "loss_mask", WEIGHTS):
        return num_tokens
    return num_samples + (name == "cu_seqlens")


def _code(length: Int64Array) -> Int64Array:
    """Return the k for which the length is written in 2^k bytes."""
    return (length >= 1 << 8).astype(np.int64) + (length >= 1 << 16)


def _array_sizes(length: Int64Array, width: int) -> Int64Array:
    return 1 + (1 << _code(length)) + length * width


def _sizes(
    columns: dict[str, str], num_tokens: Int64Array, num_samples: Int64Array
) -> tuple[dict[str, Int64Array], Int64Array]:
    """Count encoded bytes of each array by the name of its column, and of each row: int64[r] all."""
    dtypes = {name: encoding.removeprefix("ndarray:") for name, encoding in columns.items() if encoding != "int"}
    sizes = {
        name: _array_sizes(_length_of(name, num_tokens, num_samples), np.dtype(dtype).itemsize)
        for name, dtype in dtypes.items()
    }
    heads = 4 * len(sizes) + 8 * (len(columns) - len(sizes))
    return sizes, np.stack([*sizes.values()]).sum(axis=0) + heads


def _sizes_of(job: Job, packs: Int64Array) -> tuple[dict[str, Int64Array], Int64Array]:
    """Return `_sizes` of these packs."""
    counts = (each[packs].astype(np.int64) for each in (job.packed.num_tokens, job.packed.num_samples))
    return _sizes(_columns(job), *counts)


def _encode(job: Job, packs: Int64Array) -> NDArray[np.uint8]:
    """Encode the rows, one after another: uint8[b]."""
    sizes, rows = _sizes_of(job, packs)
    ends = np.cumsum(rows)
    out = np.zeros(int(ends[-1]), dtype=np.uint8)
    place = ends - rows
    _put(out, place, np.stack([*sizes.values()], axis=1).astype("<u4"))
    place = place + 4 * len(sizes)
    for name in _columns(job):
        column = job.packed.column(name, packs)
        if isinstance(column, Lists):
            _put_array(out, place, column)
            place = place + sizes[name]
        else:
            _put(out, place, column.astype("<i8"))
            place = place + 8
    return out


def _put_array(out: NDArray[np.uint8], place: Int64Array, lists: Lists) -> None:
    """Write arrays. Always writes four bytes of the length; the items, or the next columns, overwrite the excess."""
    length = np.diff(lists.offsets)
    code = _code(length)
    _put(out, place, (1 << 2 | code).astype(np.uint8))
    _put(out, place + 1, length.astype("<u4"))
    data, begins = lists.values.view(np.uint8), (lists.offsets * lists.values.itemsize).tolist()
    for (begin, end), start in zip(pairwise(begins), (place + 1 + (1 << code)).tolist(), strict=True):
        out[start : start + end - begin] = data[begin:end]


def _put(out: NDArray[np.uint8], place: Int64Array, values: NDArray[Any]) -> None:
    """Write row i of `values` at `place[i]`."""
    rows = np.ascontiguousarray(values).view(np.uint8).reshape(len(place), -1)
    out[place[:, None] + np.arange(rows.shape[1])] = rows
