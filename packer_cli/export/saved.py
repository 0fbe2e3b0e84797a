"""Data sets for `datasets.load_from_disk`, one row a pack, which TRL, LLaMA-Factory and Automodel read.

The files are those of `Dataset.save_to_disk`: Arrow streams, `state.json`, `dataset_info.json`. Every column is
list<int32>; each format defines its columns, and their contents for a batch of packs.
"""

from __future__ import annotations

import json
from abc import abstractmethod
from typing import Any, ClassVar

import pyarrow as pa

from packer_cli.engine.sink import FileRange, Sink
from packer_cli.export.job import Format, Int64Array, Job, Part
from packer_cli.export.packed import Lists
from packer_cli.files import fingerprint
from packer_cli.format.arrays import to_lists

_ROWS_PER_BATCH = 1000


class SavedDataset(Format):
    """A format with the files of `Dataset.save_to_disk`."""

    columns: ClassVar[tuple[str, ...]]

    @abstractmethod
    def lists(self, job: Job, packs: Int64Array) -> list[Lists]:
        """The columns (int32) of these packs, in the order of `columns`."""

    @property
    def schema(self) -> pa.Schema:
        """Schema of the Arrow files."""
        return pa.schema([(name, pa.list_(pa.field("item", pa.int32()))) for name in self.columns])

    def write_part(self, job: Job, part: Part, sink: Sink) -> dict[str, Any]:
        """Write one Arrow stream."""
        schema = self.schema
        path = f"data-{part.number:05d}-of-{len(job.parts):05d}.arrow"
        with sink.file(path) as file, pa.ipc.new_stream(pa.PythonFile(file, mode="w"), schema) as writer:
            for packs in job.batches(part.first, part.stop, _ROWS_PER_BATCH):
                arrays = [
                    to_lists(lists.offsets, lists.values).cast(field.type)
                    for lists, field in zip(self.lists(job, packs), schema, strict=True)
                ]
                writer.write_batch(pa.record_batch(arrays, schema=schema))
        return {}

    def finish(self, job: Job, parts: list[dict[str, Any]], ranges: list[FileRange], sink: Sink) -> None:
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
