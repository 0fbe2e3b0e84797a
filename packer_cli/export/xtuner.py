"""XTuner's preset packs: `packs/` for its PresetPackDataset, `order.npy` for its PresetSampler, `samples-*.jsonl`.

XTuner's packs refer to lines of JSONL data sets. The samples are written one a line, in the order of the packs:
`{"input_ids": [...], "labels": [...], "num_tokens": n}`, with label -100 for no loss. `packs/boundaries.npy`
int64[r+1] and `packs/samples.npy` int64[m, 6] (path, line, -1, -1, first token, end) list the lines of each pack,
`packs/paths.json` the names of the files, and `order.npy` int64[r] is 0, 1, 2, ..., since the packs are in order.

XTuner refuses packs that are not full, so the lines of each are followed by the beginning of the only line of
`pad.jsonl`, a row of pads without loss.
"""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.lib import format as npy
from numpy.typing import NDArray

from packer_cli.engine.sink import Sink, WrittenFile
from packer_cli.export.job import Format, Int64Array, Job, Part, PartFacts
from packer_cli.export.packed import NO_LOSS, PackedSet, all_text, labels_of
from packer_cli.format.arrays import Lists, to_arrow

_PAD_FILE = "pad.jsonl"


class Exporter(Format):
    """See the module."""

    needs_one_capacity = True

    bytes_of = (12, 64, 0)
    """An id is written twice, and takes some six bytes as text."""

    def write_part(self, job: Job, part: Part, sink: Sink) -> PartFacts:
        """Write one JSONL file."""
        with sink.file(f"samples-{part.number:05d}.jsonl") as file:
            for packs in job.batches(part.first, part.stop):
                file.write(_lines(job.packed, packs))
        return {}

    def finish(self, job: Job, parts: list[PartFacts], files: list[WrittenFile], sink: Sink) -> None:
        """Write the packs and their order."""
        is_short = job.row_tokens() < job.capacity
        ends = np.concatenate([[0], np.cumsum(job.row_samples() + is_short, dtype=np.int64)])
        with sink.file("packs/boundaries.npy") as file:
            npy.write_array(file, ends)
        with sink.file("packs/samples.npy") as file:
            shape = {"descr": "<i8", "fortran_order": False, "shape": (int(ends[-1]), 6)}
            npy.write_array_header_1_0(file, shape)
            for part in job.parts:
                line = 0
                for packs in job.batches(part.first, part.stop):
                    lengths = job.packed.sample_lengths(packs)
                    num_pads = job.capacity - job.packed.num_tokens[packs]
                    file.write(_slices(part.number, line, lengths, num_pads, pad_path=len(files)))
                    line += len(lengths.values)
        length = job.capacity
        pads = {"input_ids": [job.manifest.pad_token_id] * length, "labels": [NO_LOSS] * length, "num_tokens": length}
        with sink.file(_PAD_FILE) as file:
            file.write((json.dumps(pads) + "\n").encode())
        paths = [str((job.folder / path).absolute()) for path in (*(each.path for each in files), _PAD_FILE)]
        with sink.file("packs/paths.json") as file:
            file.write((json.dumps(paths, indent=2, ensure_ascii=False) + "\n").encode())
        with sink.file("order.npy") as file:
            npy.write_array(file, np.arange(len(job.packs)))


def _slices(path: int, line: int, lengths: Lists, num_pads: NDArray[np.int32], pad_path: int) -> NDArray[np.int64]:
    """Make slices (int64[m, 6]): whole lines of a file, from `line` on, and after each short pack's its pads.

    Args:
        lengths: tokens of each sample of the packs.
        num_pads: int32[k]: pads that each pack needs.
    """
    slices: list[tuple[int, ...]] = []
    for own, pads in zip(np.split(lengths.values, lengths.offsets[1:-1]), num_pads.tolist(), strict=True):
        slices += [(path, line + place, -1, -1, 0, length) for place, length in enumerate(own.tolist())]
        line += len(own)
        if pads > 0:
            slices.append((pad_path, 0, -1, -1, 0, pads))
    return np.array(slices, dtype="<i8")


def _lines(packed: PackedSet, packs: Int64Array) -> pa.Buffer:
    """Write the text of all samples of these packs."""
    ids, labels = packed.lists("input_ids", packs).values, labels_of(packed, packs).values
    lengths = packed.sample_lengths(packs).values
    offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    lines = pc.binary_join_element_wise(
        '{"input_ids": [',
        _joined(offsets, ids),
        '], "labels": [',
        _joined(offsets, labels),
        '], "num_tokens": ',
        to_arrow(lengths).cast(pa.string()),
        "}\n",
        "",
    )
    return all_text(lines)


def _joined(offsets: Int64Array, values: NDArray[np.int32]) -> pa.Array:
    """Write the numbers of each list as text, separated by commas."""
    numbers = to_arrow(Lists(offsets, values)).cast(pa.list_(pa.string()))
    return pc.binary_join(numbers, ", ")
