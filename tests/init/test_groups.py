"""Groups by a rule of thumb."""

from __future__ import annotations

import numpy as np
import pytest

from packer_cli.config import PlanConfig
from packer_cli.init.text import propose_groups


@pytest.mark.parametrize(
    ("longest", "num_gpus", "groups"),
    [
        (100, 8, ["8k:1"]),
        (9000, 8, ["16k:1"]),
        (16385, 8, ["16k:1", "32k:2"]),
        (100_000, 8, ["16k:1", "128k:8"]),
        (100_000, 6, ["16k:1", "96k:6"]),
        (1_000_000, 4, ["16k:1", "64k:4"]),
        (100_000, 1, ["16k:1"]),
    ],
)
def test_a_gpu_holds_at_most_16k_tokens(longest, num_gpus, groups):
    found, why = propose_groups(np.array([5, longest], dtype=np.int32), num_gpus)
    assert found == groups
    assert f"{longest:,} tokens" in why
    PlanConfig(groups=",".join(found), gpus=num_gpus)
    assert ("50.0% are over" in why) == (longest > PlanConfig(groups=groups, gpus=num_gpus).groups[-1].capacity)


def test_no_length_is_known():
    assert propose_groups(np.zeros(0, dtype=np.int32), 8)[0] == ["16k:1"]
