"""Best-fit packing: cut only samples longer than the capacity, then best-fit decreasing.

Source: Ding et al., "Fewer Truncations Improve Language Modeling", arXiv 2404.10830. Price: that of `bfd`. Use it for
pre-training that should keep documents whole where it can; `wrap` pads nothing, but cuts about one sample per pack.
`--overflow split` cuts the samples, at the greatest capacity; other values of `--overflow` are refused, because
without the cutting this is `bfd`.
"""

from __future__ import annotations

from packer_cli.plan.packing import bfd
from packer_cli.plan.packing.base import ChunkOptions, PackingAlgorithm

ALGORITHM = PackingAlgorithm(
    name="bfd-split",
    summary="best-fit packing: cut only what exceeds the capacity, then `bfd`",
    pack=bfd.pack,
    options=ChunkOptions,
    needs_split=True,
)
