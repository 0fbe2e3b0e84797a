"""A data set like that of NeMo Automodel's packing, for `prepacked: true`; every row is padded to the capacity.

`input_ids`; `labels`, shifted to the token that predicts them, because Automodel shifts in its data sets, not in its
losses; `position_ids`, which restart with each sample; `seq_lens`, the tokens of each sample; `seq_lens_padded`, the
same with pads: those that align samples (`--align`), and in the last sample those of the row. Positions continue in
pads. Without the last two columns, a row is one segment.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from packer_cli.export.columns import NO_LOSS, labels_of, pad_samples, padded, positions_of, shifted
from packer_cli.export.job import Job
from packer_cli.export.saved import SavedDataset, lists_of
from packer_cli.format.arrays import Lists


class Exporter(SavedDataset):
    """See the module."""

    needs_one_capacity = True
    schema = lists_of("input_ids", "labels", "position_ids", "seq_lens", "seq_lens_padded")

    bytes_of = (12, 8, 0)
    """Three numbers a token and two a sample; rows are nearly full."""

    def values(self, job: Job, rows: slice) -> list[Lists | NDArray[np.int32]]:
        """Make the columns, with rows of exactly the capacity."""
        capacity, packs = job.capacity, job.packs[rows]
        lengths = job.packed.sample_lengths(packs)
        sizes = job.aligned(lengths, packs)
        ids = pad_samples(job.packed.lists("input_ids", packs), lengths, sizes, job.pad_token_id)
        labels = pad_samples(shifted(labels_of(job.packed, packs)), lengths, sizes, NO_LOSS)
        last = sizes.offsets[1:] - 1
        with_pads = sizes.values.copy()
        with_pads[last] += (capacity - np.diff(ids.offsets)).astype(np.int32)
        begin = np.diff(ids.offsets) - sizes.values[last]  # Where the last sample begins in its row.
        going_on = (np.arange(capacity) - begin[:, None]).astype(np.int32)
        return [
            padded(ids, capacity, job.pad_token_id),
            padded(labels, capacity, NO_LOSS),
            padded(positions_of(sizes, ids.offsets), capacity, going_on),
            lengths,
            Lists(lengths.offsets, with_pads),
        ]
