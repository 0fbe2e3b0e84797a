"""The peak of a stretch of work, apart from what was held before and what comes after."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from packer_cli.report.compare.memory import PeakMemory

MIB = 2**20


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a peak cannot be set back")
def test_only_what_the_work_holds_counts():
    np.ones(96 * MIB, dtype=np.uint8)  # An earlier peak.
    held = np.ones(32 * MIB, dtype=np.uint8)
    memory = PeakMemory()
    np.ones(64 * MIB, dtype=np.uint8)  # It is gone again at once.
    peak = memory.num_bytes()
    assert 63 * MIB <= peak <= 72 * MIB
    assert held.all()
    assert PeakMemory().num_bytes() <= 8 * MIB
