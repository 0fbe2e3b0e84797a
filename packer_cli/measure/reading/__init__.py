"""`hbpack bench-loader`: how fast `PackedDataset` is on a set and a machine."""
