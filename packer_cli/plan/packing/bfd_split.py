"""Best-fit packing: cut only what is longer than the capacity, best-fit decreasing for the rest.

Source: Ding et al., "Fewer Truncations Improve Language Modeling", arXiv 2404.10830. Price: that of `bfd`. Use it for
pre-training that should keep documents whole where it can; `wrap` pads nothing, and cuts about one sample a pack.
The cutting is `--overflow split`, at the greatest capacity; other overflows are refused, so that the name is kept.
"""

from __future__ import annotations

from packer_cli.plan.packing import bfd
from packer_cli.plan.packing.base import PackingAlgorithm

ALGORITHM = PackingAlgorithm(
    name="bfd-split",
    summary="best-fit packing: cut only what exceeds the capacity, then `bfd`",
    pack=bfd.pack,
    needs_split=True,
)
