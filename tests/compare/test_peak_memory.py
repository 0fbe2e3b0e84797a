"""The peak of a stretch of work, apart from what was held before and what comes after."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

MIB = 2**20

# In a process of its own: another test's garbage, given back meanwhile, would hide what the work takes.
SCRIPT = """
import json
import numpy as np
from packer_cli.compare.row_process import PeakMemory

MIB = 2**20
np.ones(96 * MIB, dtype=np.uint8)  # An earlier peak.
held = np.ones(32 * MIB, dtype=np.uint8)
memory = PeakMemory()
np.ones(64 * MIB, dtype=np.uint8)  # It is gone again at once.
print(json.dumps([memory.num_bytes(), PeakMemory().num_bytes(), bool(held.all())]))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a peak cannot be set back")
def test_only_what_the_work_holds_counts():
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    peak, nothing, is_held = json.loads(done.stdout)
    assert 63 * MIB <= peak <= 72 * MIB
    assert nothing <= 8 * MIB
    assert is_held
