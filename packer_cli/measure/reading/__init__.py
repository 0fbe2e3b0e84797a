"""`hbpack bench-loader`: how fast `PackedDataset` is on a set and a machine."""

import packer_cli.loader  # noqa: F401  (first, since it says plainly where torch is missing)
