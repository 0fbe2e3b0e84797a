"""What trainers do at run time, as rows of a comparison: padded batches, TRL's packing, Axolotl's.

They take the longest group alone, since every sample must fit, and run rows in random order, as the trainers' samplers
do. hbpack writes none of them. Samples over the capacity follow --overflow, as in all rows; TRL cuts them off, and
Axolotl leaves them out.
"""

from __future__ import annotations

from packer_cli.plan.strategies.by_group.strategy import OnlyCompared


class Padded(OnlyCompared):
    """A trainer that does not pack."""

    name = "padded"
    summary = "random batches, as large as fit, padded to their longest sample"
    short = "random batches, padded"
    defaults = {"packing": "padded", "balance": "none"}


class TrlBfd(OnlyCompared):
    """TRL's `packing=True` (`pack_dataset` through `datasets.map`, whose batches have 1,000 samples)."""

    name = "trl-bfd"
    summary = "TRL's packing (1.16): best fit decreasing, 1,000 samples of the data at a time; rows in random order"
    short = "TRL's packing"
    defaults = {"packing": "bfd:chunk=1000", "balance": "none"}


class Axolotl(OnlyCompared):
    """Axolotl's `sample_packing: true`, with its default `sample_packing_group_size` and `sample_packing_bin_size`."""

    name = "axolotl"
    summary = "Axolotl's multipack (0.21): first fit in random order, at most 200 samples a pack; rows in random order"
    short = "Axolotl's multipack"
    defaults = {"packing": "ffs:chunk=100000", "balance": "none", "max_samples": 200}
