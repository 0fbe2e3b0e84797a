"""Megatron-Core's IndexedDataset: `tokens.bin` and `.idx`, and `loss_mask.bin` and `.idx` of the same shape.

A *sequence* of the index is a sample and a *document* is a pack, so both kinds of borders are kept: with d for the
`document_indices`, `dataset[d[k]:d[k + 1]]` is pack k as a list of samples. Since the format has no loss masks, a
second data set (uint8) has a 1 for each token that carries a loss, at the same index; in a set with weights it is
float32 and has these.

Where the plan aligns samples (`--align`), each is followed by pads without loss, so that a row's samples can be
divided among context-parallel ranks as they are.

Like Megatron, stores token ids as uint16 if the vocabulary has fewer than 65,500 entries, else as int32.

The index (little-endian): "MMIDIDX" and two zero bytes, uint64 version 1, uint8 code of the dtype, uint64 number of
sequences, uint64 number of documents + 1; then the lengths (int32) and byte offsets (int64) of the sequences, and the
first sequence of each document, then their end (int64).
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np

from packer_cli.engine.sink import FileRange, Sink
from packer_cli.export.job import Format, Int64Array, Job, Part, PartFacts
from packer_cli.export.packed import pad_samples
from packer_cli.files import HashingFile
from packer_cli.format.arrays import Lists
from packer_cli.format.manifest import Manifest

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


class Exporter(Format):
    """See the module."""

    aligns_samples = True
    weight_bytes = 3

    bytes_of = (3, 0, 0)
    """Bytes in both `.bin` files, of which parts are stretches."""

    def shared_files(self, job: Job) -> dict[str, int]:
        """Return the sizes in bytes of both `.bin` files."""
        num_tokens = int(job.written_tokens.sum())
        return {
            "tokens.bin": num_tokens * token_dtype(job.manifest).itemsize,
            "loss_mask.bin": num_tokens * mask_dtype(job).itemsize,
        }

    def write_part(self, job: Job, part: Part, sink: Sink) -> PartFacts:
        """Write a stretch of each `.bin` file."""
        dtype = token_dtype(job.manifest)
        with sink.stretch("tokens.bin", part.first_token * dtype.itemsize) as file:
            for packs in job.batches(part.first, part.stop):
                ids = _padded(job, job.packed.lists("input_ids", packs), packs, job.pad_token_id)
                file.write(ids.astype(dtype))
        dtype = mask_dtype(job)
        with sink.stretch("loss_mask.bin", part.first_token * dtype.itemsize) as file:
            for packs in job.batches(part.first, part.stop):
                mask = job.packed.loss_mask(packs, is_weighted=job.is_weighted)
                file.write(_padded(job, mask, packs, 0).astype(dtype))
        return {}

    def finish(self, job: Job, parts: list[PartFacts], ranges: list[FileRange], sink: Sink) -> None:
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
