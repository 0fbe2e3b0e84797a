"""Kernels are loaded by tiny plans, whatever the capacities of the groups."""

from __future__ import annotations

import subprocess
import sys

import pytest

from packer_cli.config import PlanConfig, validate
from packer_cli.config.resolve import resolve
from packer_cli.plan.warming import tiny, warm_up

WARM = """
import resource, sys
from packer_cli.config import PlanConfig, validate
from packer_cli.config.resolve import resolve
from packer_cli.plan.warming import warm_up

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

for groups in ("4k:1", sys.argv[1]):
    warm_up(resolve(validate(PlanConfig, {"groups": groups, "gpus": 8})).request)
    before, now = (peak(), peak()) if groups == "4k:1" else (before, peak())
print((now - before) >> 10)
"""


@pytest.mark.parametrize("groups", ["400000000:1", "1k:1,300m:2,400m:8"])
def test_memory_does_not_grow_with_the_capacity(groups):
    done = subprocess.run([sys.executable, "-c", WARM, groups], capture_output=True, text=True)
    assert int(done.stdout) < 300, done.stderr


@pytest.mark.parametrize(
    ("groups", "options"),
    [
        ("400000000:1", {}),
        ("8m:1,300m:6,400m:12", {"gpus": 12}),
        ("6m:1,96m:4", {"align": 96}),
        ("64m:1", {"packing": "decompose"}),
        ("3m:1,512m:1", {"parallel": "tp=2,cp=2,pp=2"}),
    ],
)
def test_smaller_groups_to_warm_up_with(groups, options):
    request = resolve(validate(PlanConfig, {"groups": groups, "gpus": 8, **options})).request
    warm = tiny(request).groups
    for group, small in zip(request.groups, warm, strict=True):
        assert small.capacity <= min(group.capacity, 1 << 22)
        assert small.capacity % (group.num_gpus * group.align) == 0 or small.capacity == group.capacity
        assert (small.layout, small.align) == (group.layout, group.align)
    assert [group.capacity for group in warm] == sorted({group.capacity for group in warm})
    warm_up(request)
