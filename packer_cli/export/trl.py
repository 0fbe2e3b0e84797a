"""A data set like that of TRL's packing, one row a pack, for `datasets.load_from_disk(DIR)`.

`input_ids`; `labels`, -100 for no loss and so for the first token of every sample; `seq_lengths`, from which TRL's
collator makes position ids that restart with each sample.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from packer_cli.export.columns import labels_of
from packer_cli.export.job import Job
from packer_cli.export.saved import SavedDataset, lists_of
from packer_cli.format.arrays import Lists


class Exporter(SavedDataset):
    """See the module."""

    hub_files = "data-*.arrow"
    shares_rows = False
    schema = lists_of("input_ids", "labels", "seq_lengths")

    bytes_of = (8, 4, 16)
    """Two numbers a token, one a sample."""

    def values(self, job: Job, rows: slice) -> list[Lists | NDArray[np.int32]]:
        """Make the columns, without padding."""
        packed, packs = job.packed, job.packs[rows]
        return [packed.lists("input_ids", packs), labels_of(packed, packs), packed.sample_lengths(packs)]
