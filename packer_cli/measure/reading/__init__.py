"""`hbpack bench-loader`: how fast `PackedDataset` reads a set on this machine."""
