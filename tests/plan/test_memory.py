"""Memory of a plan: it grows with the samples, and not with the capacities."""

from __future__ import annotations

import contextlib
from pathlib import Path

import numpy as np
import pytest

from packer_cli.plan.build import build_plan
from packer_cli.plan.core.check import check_plan
from packer_cli.plan.core.groups import Group
from packer_cli.plan.core.metrics import measure
from packer_cli.plan.packing import REGISTRY
from tests.plan.test_build import whole
from tests.requests import request

GIB = 2**30
LENGTHS = np.random.default_rng(0).integers(1, 4000, 500).astype(np.int32)
NAMES = [name for name, each in REGISTRY.items() if not (each.needs_power_of_two or each.is_padded)]


@contextlib.contextmanager
def at_most_more(size):
    """This process may take so many bytes of addresses more than it has."""
    resource = pytest.importorskip("resource")
    if not Path("/proc/self/statm").exists():
        pytest.skip("the process does not know its size")
    before = resource.getrlimit(resource.RLIMIT_AS)
    held = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (held + size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("most", [2**31 - 1, 7])
def test_a_great_capacity_takes_no_memory(name, most):
    group = Group(capacity=2**30)
    with at_most_more(2 * GIB):  # A table of all lengths alone takes 8 GiB.
        plan = build_plan(whole(LENGTHS), request([group], 1, name, max_samples=most))
        check_plan(plan)
        assert measure(plan).packs_lower_bound == (1 if most > len(LENGTHS) else 72)


@pytest.mark.parametrize("fill", ["greedy", "balanced", "longest"])
def test_nor_do_great_groups_that_are_filled(fill):
    lengths = [*LENGTHS.tolist(), 2**28 + 1]
    groups = [Group(capacity=2**11), Group(capacity=2**28), Group(capacity=2**30)]
    with at_most_more(4 * GIB):  # The longest sample has 2 GiB.
        check_plan(build_plan(whole(lengths), request(groups, 1, fill=fill)))


def test_a_decomposition_and_padded_batches_take_none_either():
    with at_most_more(2 * GIB):
        for name in ("decompose", "padded"):
            check_plan(build_plan(whole(LENGTHS), request([Group(capacity=2**30)], 1, name)))
