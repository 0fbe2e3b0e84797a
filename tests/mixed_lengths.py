"""Lengths that need two groups."""

from __future__ import annotations

from pathlib import Path

import numpy as np


def save_lengths(path: Path) -> Path:
    """Write 2,000 lengths, mostly up to 1,000 tokens, and one in 40 of 1,100 to 8,000; the path again."""
    generator = np.random.default_rng(0)
    values = np.clip(generator.lognormal(4, 1, 2000), 1, 1000).astype(np.int32)
    values[::40] = generator.integers(1100, 8000, 50)
    np.save(path, values)
    return path
