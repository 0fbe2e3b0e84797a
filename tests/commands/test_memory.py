"""A plan that needs more memory than there is, is refused before it takes any."""

from __future__ import annotations

import os

import numpy as np
import pytest

from packer_cli.commands import plan_store
from packer_cli.commands.plan_store import plan_cut
from packer_cli.config import PlanConfig
from packer_cli.config.resolve import resolve
from packer_cli.engine.local import available_memory
from packer_cli.errors import RunError
from packer_cli.plan.core.cut import Samples

RESOLVED = resolve(PlanConfig(groups="1k", gpus=2))


def test_the_limit_of_the_control_group_counts(tmp_path):
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    (tmp_path / "memory.max").write_text("max\n")
    assert available_memory(tmp_path) == physical
    (tmp_path / "memory.max").write_text("1048576\n")
    assert available_memory(tmp_path) == 2**20


@pytest.mark.parametrize(("weight", "number"), [(1.0, "300,000"), (3e5, "90,000,000,000")])
def test_too_many_samples(monkeypatch, weight, number):
    monkeypatch.setattr(plan_store, "available_memory", lambda: 2**20)
    samples = Samples(
        lengths=np.full(300_000, 5, dtype=np.int32), sources=np.zeros(300_000, dtype=np.int8), weights=(weight,)
    )
    with pytest.raises(RunError) as error:
        plan_cut(samples, RESOLVED)[0]
    gib = float(number.replace(",", "")) * 20 / 2**30
    assert str(error.value) == (
        f"planning {number} samples an epoch takes about {gib:,.1f} GiB of memory, and this process may have 0.0 GiB; "
        "give smaller weights (PATH@WEIGHT), divide the inputs among several sets, or plan on a machine with more "
        "memory"
    )


def test_enough_memory(monkeypatch):
    monkeypatch.setattr(plan_store, "available_memory", lambda: 2**20)
    assert len(plan_cut(Samples(lengths=np.full(1000, 5, dtype=np.int32)), RESOLVED)[0].pieces) == 1000
