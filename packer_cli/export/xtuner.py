"""XTuner's preset packs: `packs/` for its PresetPackDataset, `order.npy` for its PresetSampler, `samples-*.jsonl`.

XTuner's packs refer to lines of JSONL data sets. The samples are written one a line, in the order of the packs:
`{"input_ids": [...], "labels": [...], "num_tokens": n}`, labels -100 where there is no loss. `packs/boundaries.npy`
int64[r+1] and `packs/samples.npy` int64[m, 6] (path, line, -1, -1, first token, end) say which lines a pack holds,
`packs/paths.json` how the files are called, and `order.npy` int64[r] is 0, 1, 2, ...: the packs stand in their order.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.lib import format as npy
from numpy.typing import NDArray

from packer_cli.arrays import to_arrow, to_lists
from packer_cli.export.job import Format, Int64Array, Job, Part, Piece, Sink
from packer_cli.export.packed import PackedSet
from packer_cli.files import HashingFile

_ROWS_PER_BATCH = 65_536
_NO_LOSS = -100


class Exporter(Format):
    """See the module."""

    def row_bytes(self, num_tokens: Int64Array, num_samples: Int64Array) -> Int64Array:
        """An id takes some six bytes as text, and stands twice."""
        return 12 * num_tokens + 64 * num_samples

    def write_part(self, job: Job, part: Part, sink: Sink) -> dict[str, Any]:
        """One JSONL file."""
        with sink.part(f"samples-{part.number:05d}.jsonl") as file:
            for packs in job.batches(part.first, part.stop, _ROWS_PER_BATCH):
                file.write(_lines(job.packed, packs))
        return {}

    def finish(self, job: Job, parts: list[dict[str, Any]], pieces: list[Piece], sink: Sink) -> None:
        """The packs and their order."""
        num_rows = len(job.packs)
        ends = np.concatenate([[0], np.cumsum(job.row_samples(), dtype=np.int64)])
        with sink.file("packs/boundaries.npy") as file:
            _npy_header(file, (num_rows + 1,))
            file.write(ends.astype("<i8"))
        with sink.file("packs/samples.npy") as file:
            _npy_header(file, (int(ends[-1]), 6))
            for part in job.parts:
                line = 0
                for packs in job.batches(part.first, part.stop, _ROWS_PER_BATCH):
                    lengths = job.packed.sample_lengths(packs).values
                    file.write(_slices(part.number, line, lengths))
                    line += len(lengths)
        paths = [str((job.folder / piece.path).absolute()) for piece in pieces]
        with sink.file("packs/paths.json") as file:
            file.write((json.dumps(paths, indent=2, ensure_ascii=False) + "\n").encode())
        with sink.file("order.npy") as file:
            _npy_header(file, (num_rows,))
            file.write(np.arange(num_rows, dtype="<i8"))


def _slices(path: int, line: int, lengths: NDArray[np.int32]) -> NDArray[np.int64]:
    """int64[m, 6]: whole lines of a file, from `line` on."""
    rows = np.full((len(lengths), 6), -1, dtype="<i8")
    rows[:, 0] = path
    rows[:, 1] = np.arange(line, line + len(lengths))
    rows[:, 4] = 0
    rows[:, 5] = lengths
    return rows


def _npy_header(file: HashingFile, shape: tuple[int, ...]) -> None:
    npy.write_array_header_1_0(file, {"descr": "<i8", "fortran_order": False, "shape": shape})


def _lines(packed: PackedSet, packs: Int64Array) -> pa.Buffer:
    """The text of all samples of these packs."""
    ids, mask = packed.lists("input_ids", packs).values, packed.lists("loss_mask", packs).values
    labels = np.where(mask != 0, ids, np.int32(_NO_LOSS))
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
    _, ends, text = lines.buffers()
    return text[: int(np.frombuffer(ends, dtype=np.int32)[len(lines)])]


def _joined(offsets: Int64Array, values: NDArray[np.int32]) -> pa.Array:
    """Comma-separated numbers of each list."""
    numbers = to_lists(offsets, values).cast(pa.list_(pa.string()))
    return pc.binary_join(numbers, ", ")
