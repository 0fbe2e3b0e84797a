"""Formats of binary files: MosaicML Streaming's shards, and Megatron-Core's data sets."""

from __future__ import annotations

import json
import struct
from itertools import compress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer_cli.engine.sink import Sink, WrittenFile
from packer_cli.export.job import Format, Int64Array, Job, Part, PartFacts
from packer_cli.export.packed import pad_samples
from packer_cli.files import HashingFile
from packer_cli.format.arrays import Lists, Row
from packer_cli.format.loss_spans import WEIGHTS
from packer_cli.format.manifest import Manifest
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


class Mds(Format):
    """MosaicML Streaming's MDS shards: `shard.00000.mds ...` and `index.json`, one sample of the format a pack.

    Columns: `input_ids` ndarray:int32, `loss_mask` ndarray:int8, `cu_seqlens` ndarray:int32, `sample_ids`
    ndarray:int64, `pack_id` and `group` int; in a set with weights `loss_weights` ndarray:float32, one for each token.
    hbpack writes the files itself: the library requires transformers below 5 and xxhash below 4, so it cannot be
    installed beside hbpack; it encodes sample by sample in Python, and cannot resume a killed run.

    A shard: uint32 n, the number of samples; uint32[n+1], the offsets in the file at which each begins and the last
    ends; the columns as JSON; then, for each sample, the sizes (uint32) of its values of variable size, and all
    values, columns sorted by name. A one-dimensional ndarray is a byte (1 << 2 | k), its length as an unsigned integer
    of 2^k bytes, and its items.
    """

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

    def finish(self, job: Job, parts: list[PartFacts], files: list[WrittenFile], sink: Sink) -> None:
        """Write `index.json`, with the checksums (the format's `xxh128` is xxh3-128)."""
        shards = [
            {
                **_config(job),
                "samples": part["samples"],
                "raw_data": {"basename": file.path, "bytes": file.num_bytes, "hashes": {"xxh128": file.xxh3}},
                "zip_data": None,
            }
            for part, file in zip(parts, files, strict=True)
        ]
        with sink.file("index.json") as index:
            index.write(json.dumps({"version": 2, "shards": shards}, sort_keys=True).encode())


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


_MAGIC = b"MMIDIDX\x00\x00"
_CODES = {"uint8": 1, "int32": 4, "float32": 7, "uint16": 8}
_FEW_IDS = 65_500


def token_dtype(manifest: Manifest) -> np.dtype[Any]:
    """Return the dtype that Megatron itself would choose."""
    vocab_size = manifest.tokenizer.vocab_size
    return np.dtype("<u2" if vocab_size is not None and vocab_size < _FEW_IDS else "<i4")


def mask_dtype(job: Job) -> np.dtype[Any]:
    """Return the dtype of the loss mask: Megatron multiplies losses with the mask, so it may hold their weights."""
    return np.dtype("<f4" if job.is_weighted else "u1")


class Megatron(Format):
    """Megatron-Core's IndexedDataset: `tokens.bin` and `.idx`, and `loss_mask.bin` and `.idx` of the same shape.

    A *sequence* of the index is a sample and a *document* is a pack, so both kinds of borders are kept: with d for the
    `document_indices`, `dataset[d[k]:d[k + 1]]` is pack k as a list of samples. Since the format has no loss masks, a
    second data set (uint8) has a 1 for each token that carries a loss, at the same index; in a set with weights it is
    float32 and has these.

    Where the plan aligns samples (`--align`), each is followed by pads without loss, so that a row's samples can be
    divided among context-parallel ranks as they are.

    Like Megatron, stores token ids as uint16 if the vocabulary has fewer than 65,500 entries, else as int32.

    The index (little-endian): "MMIDIDX" and two zero bytes, uint64 version 1, uint8 code of the dtype, uint64 number
    of sequences, uint64 number of documents + 1; then the lengths (int32) and byte offsets (int64) of the sequences,
    and the first sequence of each document, then their end (int64).
    """

    weight_bytes = 3

    bytes_of = (3, 0, 0)
    """Bytes in both `.bin` files."""

    joined = ("tokens.bin", "loss_mask.bin")

    def write_part(self, job: Job, part: Part, sink: Sink) -> PartFacts:
        """Write a piece of each `.bin` file."""
        dtype = token_dtype(job.manifest)
        with sink.file(part.piece_of("tokens.bin")) as file:
            for packs in job.batches(part.first, part.stop):
                ids = _padded(job, job.packed.lists("input_ids", packs), packs, job.manifest.pad_token_id)
                file.write(ids.astype(dtype))
        dtype = mask_dtype(job)
        with sink.file(part.piece_of("loss_mask.bin")) as file:
            for packs in job.batches(part.first, part.stop):
                mask = job.packed.loss_mask(packs, is_weighted=job.is_weighted)
                file.write(_padded(job, mask, packs, 0).astype(dtype))
        return {}

    def finish(self, job: Job, parts: list[PartFacts], files: list[WrittenFile], sink: Sink) -> None:
        """Write both `.idx` files."""
        for name, dtype in (("tokens", token_dtype(job.manifest)), ("loss_mask", mask_dtype(job))):
            with sink.file(f"{name}.idx") as file:
                _write_index(job, dtype, file)


def _padded(job: Job, items: Lists, packs: Int64Array, value: int) -> np.ndarray:
    """Pad the items of these packs, each sample's followed by the pads that align it."""
    lengths = job.packed.sample_lengths(packs)
    return pad_samples(items, lengths, job.aligned(lengths, packs), value).values


def _write_index(job: Job, dtype: np.dtype[Any], file: HashingFile) -> None:
    """Write an `.idx` file. Memory: one batch of lengths, and 8 bytes a row."""
    documents = np.concatenate([[0], np.cumsum(job.row_samples(), dtype=np.int64)])
    num_sequences = int(documents[-1])
    file.write(_MAGIC + struct.pack("<QBQQ", 1, _CODES[dtype.name], num_sequences, len(documents)))
    for packs in job.batches(0, len(job.packs)):
        file.write(job.aligned(job.packed.sample_lengths(packs), packs).values.astype("<i4"))
    offset = 0
    for packs in job.batches(0, len(job.packs)):
        sizes = job.aligned(job.packed.sample_lengths(packs), packs).values
        ends = np.cumsum(sizes, dtype=np.int64) * dtype.itemsize
        file.write(np.concatenate([[0], ends[:-1]]).astype("<i8") + offset)
        offset += int(ends[-1])
    file.write(documents.astype("<i8"))
