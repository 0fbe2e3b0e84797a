"""A data set like that of TRL's packing, one row a pack, for `datasets.load_from_disk(DIR)`.

`input_ids`; `labels`, -100 for no loss and so for the first token of every sample; `seq_lengths`, from which TRL's
collator makes position ids that restart with each sample.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from packer_cli.export.columns import labels_of
from packer_cli.export.job import Int64Array, Job
from packer_cli.export.saved import SavedDataset, lists_of
from packer_cli.format.arrays import Lists


class Exporter(SavedDataset):
    """See the module."""

    hub_files = "data-*.arrow"
    shares_rows = False
    schema = lists_of("input_ids", "labels", "seq_lengths")

    def row_bytes(self, num_tokens: Int64Array, num_samples: Int64Array) -> Int64Array:
        """Bytes of each row (int64[r]): two numbers a token, one a sample."""
        return 8 * num_tokens + 4 * num_samples + 16

    def values(self, job: Job, rows: slice) -> list[Lists | NDArray[np.int32]]:
        """The columns, without padding."""
        packed, packs = job.packed, job.packs[rows]
        return [packed.lists("input_ids", packs), labels_of(packed, packs), packed.sample_lengths(packs)]
