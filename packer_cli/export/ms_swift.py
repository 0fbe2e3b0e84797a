"""A data set for ms-swift's `--cached_dataset`, one row a sample, from which its sequential packing makes our packs.

`input_ids`; `labels`, -100 for no loss and so for the first token of every sample; `length`, and `lengths`, a list of
it alone. With `--truncation_strategy split`, ms-swift takes these tokens as they are.

Its sequential packing begins a new pack where the next sample would not fit, or the pack is full. So that it never
moves the first sample of a pack into the one before, each pack begins with its longest sample; if even that would
still fit into the pack before, pads without loss make that one full.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packer_cli.export.columns import NO_LOSS, labels_of
from packer_cli.export.job import Job
from packer_cli.export.saved import INTEGERS, SavedDataset
from packer_cli.format.arrays import Lists


class Exporter(SavedDataset):
    """See the module."""

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
        offsets = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])
        source = np.arange(offsets[-1]) + np.repeat(starts - offsets[:-1], sizes)
        np.minimum(source, num_tokens, out=source)
        ids = np.append(job.packed.lists("input_ids", packs).values, np.int32(job.pad_token_id))
        labels = np.append(labels_of(job.packed, packs).values, np.int32(NO_LOSS))
        each = Lists(offsets=np.arange(len(sizes) + 1), values=sizes)
        return [Lists(offsets, ids[source]), Lists(offsets, labels[source]), sizes, each]


def _longest_first(lengths: Lists) -> NDArray[np.int64]:
    """Order the samples of each pack, its longest one first, the others as they are: int64[samples]."""
    pack = np.repeat(np.arange(len(lengths.offsets) - 1), np.diff(lengths.offsets))
    by_length = np.lexsort((-lengths.values, pack))
    is_longest = np.zeros(len(pack), dtype=np.bool_)
    is_longest[by_length[lengths.offsets[:-1]]] = True
    return np.lexsort((~is_longest, pack))
