"""Data sets for `datasets.load_from_disk`, which Automodel, TRL, LLaMA-Factory and ms-swift read.

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

from packer_cli.engine.sink import Sink, WrittenFile
from packer_cli.export.job import Format, Job, Part, PartFacts
from packer_cli.export.packed import NO_LOSS, labels_of, pad_samples, padded, positions_of, sample_numbers, shifted
from packer_cli.files import fingerprint
from packer_cli.format.arrays import Lists, to_arrow
from packer_cli.format.ragged import expand, offsets_of, owners

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

    def finish(self, job: Job, parts: list[PartFacts], files: list[WrittenFile], sink: Sink) -> None:
        """Write the files that `load_from_disk` expects."""
        state: dict[str, Any] = {
            "_data_files": [{"filename": file.path} for file in files],
            "_fingerprint": fingerprint([file.xxh3 for file in files])[:16],
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


class Automodel(SavedDataset):
    """A data set like that of NeMo Automodel's packing, for `prepacked: true`; every row is padded to the capacity.

    `input_ids`; `labels`, shifted to the token that predicts them, because Automodel shifts in its data sets, not in
    its losses; `position_ids`, which restart with each sample; `seq_lens`, the tokens of each sample;
    `seq_lens_padded`, the same with pads: those that align samples (`--align`), and in the last sample those of the
    row. Positions continue in pads. Without the last two columns, a row is one segment.
    """

    needs_one_capacity = True
    schema = lists_of("input_ids", "labels", "position_ids", "seq_lens", "seq_lens_padded")

    bytes_of = (12, 8, 0)
    """Three numbers a token and two a sample; rows are nearly full."""

    def values(self, job: Job, rows: slice) -> list[Lists | NDArray[np.int32]]:
        """Make the columns, with rows of exactly the capacity."""
        capacity, packs = job.capacity, job.packs[rows]
        lengths = job.packed.sample_lengths(packs)
        sizes = job.aligned(lengths, packs)
        ids = pad_samples(job.packed.lists("input_ids", packs), lengths, sizes, job.manifest.pad_token_id)
        labels = pad_samples(shifted(labels_of(job.packed, packs)), lengths, sizes, NO_LOSS)
        last = sizes.offsets[1:] - 1
        with_pads = sizes.values.copy()
        with_pads[last] += (capacity - np.diff(ids.offsets)).astype(np.int32)
        begin = np.diff(ids.offsets) - sizes.values[last]  # Where the last sample begins in its row.
        going_on = (np.arange(capacity) - begin[:, None]).astype(np.int32)
        return [
            padded(ids, capacity, job.manifest.pad_token_id),
            padded(labels, capacity, NO_LOSS),
            padded(positions_of(sizes, ids.offsets), capacity, going_on),
            lengths,
            Lists(lengths.offsets, with_pads),
        ]


class Trl(SavedDataset):
    """A data set like that of TRL's packing, one row a pack, for `datasets.load_from_disk(DIR)`.

    `input_ids`; `labels`, -100 for no loss and so for the first token of every sample; `seq_lengths`, from which TRL's
    collator makes position ids that restart with each sample.
    """

    hub_files = "data-*.arrow"
    shares_rows = False
    schema = lists_of("input_ids", "labels", "seq_lengths")

    bytes_of = (8, 4, 16)
    """Two numbers a token, one a sample."""

    def values(self, job: Job, rows: slice) -> list[Lists | NDArray[np.int32]]:
        """Make the columns, without padding."""
        packed, packs = job.packed, job.packs[rows]
        return [packed.lists("input_ids", packs), labels_of(packed, packs), packed.sample_lengths(packs)]


_MULTIPLE = 8
"""Rows of LLaMA-Factory have a multiple of so many tokens."""


class LlamaFactory(SavedDataset):
    """A data set like that of LLaMA-Factory's neat packing, for `tokenized_path`; every row is padded to the capacity.

    `input_ids`; `labels`, -100 for no loss; `attention_mask`, 1 for the tokens of a pack's first sample, 2 for those
    of its second, 0 for pads; `position_ids`, which restart with each sample and are 0 for pads. With FlashAttention
    2, its collator removes the pads and the model takes the borders from `position_ids`; otherwise the collator makes
    a block-diagonal mask from `attention_mask`.

    The collator pads all columns except `position_ids` to multiples of 8, so the length of rows is such a multiple.
    """

    needs_one_capacity = True
    shares_rows = False
    schema = lists_of("input_ids", "labels", "attention_mask", "position_ids")

    bytes_of = (16, 0, 0)
    """Four numbers a token; rows are nearly full."""

    def values(self, job: Job, rows: slice) -> list[Lists | NDArray[np.int32]]:
        """Make the columns, with rows of the capacity rounded up to a multiple of 8."""
        packs = job.packs[rows]
        length = -(-job.capacity // _MULTIPLE) * _MULTIPLE
        ids, lengths = job.packed.lists("input_ids", packs), job.packed.sample_lengths(packs)
        return [
            padded(ids, length, job.manifest.pad_token_id),
            padded(labels_of(job.packed, packs), length, NO_LOSS),
            padded(sample_numbers(lengths, ids.offsets), length, 0),
            padded(positions_of(lengths, ids.offsets), length, 0),
        ]


class MsSwift(SavedDataset):
    """A data set for ms-swift's `--cached_dataset`, one row a sample, of which its sequential packing makes our packs.

    `input_ids`; `labels`, -100 for no loss and so for the first token of every sample; `length`, and `lengths`, a list
    of it alone. With `--truncation_strategy split`, ms-swift takes these tokens as they are.

    Its sequential packing begins a new pack where the next sample would not fit, or the pack is full. So that it never
    moves the first sample of a pack into the one before, each pack begins with its longest sample; if even that would
    still fit into the pack before, pads without loss make that one full.
    """

    needs_one_capacity = True
    schema = pa.schema([("input_ids", INTEGERS), ("labels", INTEGERS), ("length", pa.int32()), ("lengths", INTEGERS)])
    usage = (
        "swift sft --cached_dataset {output} --truncation_strategy split --packing true --packing_strategy sequential "
        "--packing_num_proc 1 --packing_length {capacity} --train_dataloader_shuffle false "
        "--per_device_train_batch_size 1"
    )

    bytes_of = (8, 20, 0)
    """Two numbers a token, five a sample."""

    def values(self, job: Job, rows: slice) -> list[Any]:
        """Make the columns: a row for each sample, and for the pads of a pack."""
        packs = job.packs[rows]
        lengths = job.packed.sample_lengths(packs)
        longest = np.maximum.reduceat(lengths.values, lengths.offsets[:-1])
        room = job.capacity - job.packed.num_tokens[packs]
        following = job.packs[rows.stop : rows.stop + 1]  # Without any, more than fit anywhere.
        last = job.packed.sample_lengths(following).values.max() if len(following) else job.capacity + 1
        num_pads = np.where(room >= np.append(longest[1:], last), room, 0)
        order = _longest_first(lengths)
        sizes = np.insert(lengths.values[order], lengths.offsets[1:], num_pads)
        # A token of pads stands at the end of the arrays, for all that are inserted.
        starts = np.cumsum(lengths.values, dtype=np.int64) - lengths.values
        num_tokens = int(lengths.values.sum(dtype=np.int64))
        starts = np.insert(starts[order], lengths.offsets[1:], num_tokens)
        is_real = sizes > 0
        sizes, starts = sizes[is_real], starts[is_real]
        offsets, source = offsets_of(sizes), np.minimum(expand(starts, sizes), num_tokens)
        ids = np.append(job.packed.lists("input_ids", packs).values, np.int32(job.manifest.pad_token_id))
        labels = np.append(labels_of(job.packed, packs).values, np.int32(NO_LOSS))
        each = Lists(offsets=np.arange(len(sizes) + 1), values=sizes)
        return [Lists(offsets, ids[source]), Lists(offsets, labels[source]), sizes, each]


def _longest_first(lengths: Lists) -> NDArray[np.int64]:
    """Order the samples of each pack, its longest one first, the others as they are: int64[samples]."""
    pack = owners(np.diff(lengths.offsets))
    by_length = np.lexsort((-lengths.values, pack))
    is_longest = np.zeros(len(pack), dtype=np.bool_)
    is_longest[by_length[lengths.offsets[:-1]]] = True
    return np.lexsort((~is_longest, pack))
