"""Data sets for `datasets.load_from_disk`, which TRL, LLaMA-Factory, Automodel and ms-swift read.

The files are those of `Dataset.save_to_disk`: Arrow streams, `state.json`, `dataset_info.json`. Each format defines
its columns, and their contents for a batch of packs.
"""

from __future__ import annotations

import json
from abc import abstractmethod
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packer_cli.engine.sink import FileRange, Sink
from packer_cli.export.job import Format, Job, Part, PartFacts
from packer_cli.files import fingerprint
from packer_cli.format.arrays import Lists, to_arrow

INTEGERS = pa.list_(pa.field("item", pa.int32()))
"""The type of a column of lists."""

_ROWS_PER_BATCH = 1000


def lists_of(*names: str) -> pa.Schema:
    """Make the schema of columns of lists."""
    return pa.schema([(name, INTEGERS) for name in names])


class SavedDataset(Format):
    """A format with the files of `Dataset.save_to_disk`."""

    schema: ClassVar[pa.Schema]
    """Schema of the Arrow files."""

    @abstractmethod
    def values(self, job: Job, rows: slice) -> list[Lists | NDArray[np.int32]]:
        """Make the columns of these rows of the job, in the order of the schema; a pack may become several rows."""

    def write_part(self, job: Job, part: Part, sink: Sink) -> PartFacts:
        """Write one Arrow stream."""
        schema, first = self.schema, part.first
        path = f"data-{part.number:05d}-of-{len(job.parts):05d}.arrow"
        with sink.file(path) as file, pa.ipc.new_stream(pa.PythonFile(file, mode="w"), schema) as writer:
            for packs in job.batches(part.first, part.stop, _ROWS_PER_BATCH):
                rows = slice(first, first + len(packs))
                values = zip(self.values(job, rows), schema, strict=True)
                arrays = [to_arrow(each).cast(field.type) for each, field in values]
                writer.write_batch(pa.record_batch(arrays, schema=schema))
                first = rows.stop
        return {}

    def finish(self, job: Job, parts: list[PartFacts], ranges: list[FileRange], sink: Sink) -> None:
        """Write the files that `load_from_disk` expects."""
        state: dict[str, Any] = {
            "_data_files": [{"filename": range_.path} for range_ in ranges],
            "_fingerprint": fingerprint([range_.xxh3 for range_ in ranges])[:16],
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
