"""A data set like that of LLaMA-Factory's neat packing, for `tokenized_path`; every row is padded to the capacity.

`input_ids`; `labels`, -100 for no loss; `attention_mask`, 1 for the tokens of a pack's first sample, 2 for those of
its second, 0 for pads; `position_ids`, which restart with each sample and are 0 for pads. With FlashAttention 2, its
collator removes the pads and the model takes the borders from `position_ids`; otherwise the collator makes a
block-diagonal mask from `attention_mask`.

The collator pads all columns except `position_ids` to multiples of 8, so the length of rows is such a multiple.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from packer_cli.export.columns import NO_LOSS, labels_of, padded, positions_of, sample_numbers
from packer_cli.export.job import Job
from packer_cli.export.saved import SavedDataset, lists_of
from packer_cli.format.arrays import Lists

_MULTIPLE = 8


class Exporter(SavedDataset):
    """See the module."""

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
            padded(ids, length, job.pad_token_id),
            padded(labels_of(job.packed, packs), length, NO_LOSS),
            padded(sample_numbers(lengths, ids.offsets), length, 0),
            padded(positions_of(lengths, ids.offsets), length, 0),
        ]
