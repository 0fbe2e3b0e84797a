"""A data set as TRL's packing makes it: `datasets.load_from_disk(DIR)`, one row a pack.

`input_ids`; `labels`, -100 where there is no loss, which is always so at the first token of a sample; `seq_lengths`,
from which TRL's collator makes position ids that restart with each sample.
"""

from __future__ import annotations

from packer_cli.export.columns import labels_of
from packer_cli.export.job import Int64Array, Job
from packer_cli.export.packed import Lists
from packer_cli.export.saved import SavedDataset


class Exporter(SavedDataset):
    """See the module."""

    columns = ("input_ids", "labels", "seq_lengths")

    def row_bytes(self, num_tokens: Int64Array, num_samples: Int64Array) -> Int64Array:
        """Two numbers a token, one a sample."""
        return 8 * num_tokens + 4 * num_samples + 16

    def lists(self, job: Job, packs: Int64Array) -> list[Lists]:
        """Real tokens only."""
        packed = job.packed
        return [packed.lists("input_ids", packs), labels_of(packed, packs), packed.sample_lengths(packs)]
