"""The limits of control groups; a plan that needs more memory than there is, is refused before it takes any."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from packer_cli.commands import plan
from packer_cli.commands.plan import plan_cut
from packer_cli.config import PlanConfig
from packer_cli.config.resolve import resolve
from packer_cli.engine import local
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


CPU = {"quota": "cpu/cpu.cfs_quota_us", "period": "cpu/cpu.cfs_period_us"}


@pytest.mark.parametrize(
    ("files", "quota", "workers"),
    [
        ({"cpu.max": "150000 100000\n"}, 1.5, 2),
        ({"cpu.max": "25000 100000\n"}, 0.25, 1),
        ({"cpu.max": "1600000 100000\n"}, 16, 8),
        ({"cpu.max": "max 100000\n"}, None, 8),
        ({CPU["quota"]: "200000\n", CPU["period"]: "100000\n"}, 2.0, 2),
        ({CPU["quota"]: "-1\n", CPU["period"]: "100000\n"}, None, 8),
        ({CPU["quota"]: "200000\n"}, None, 8),
        ({"cpu.max": "what?"}, None, 8),
        ({}, None, 8),
    ],
)
def test_the_cpu_quota_of_the_control_group_counts(tmp_path, monkeypatch, files, quota, workers):
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert local.cpu_quota(tmp_path) == quota
    monkeypatch.setattr(local, "cpu_quota", lambda: quota)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(8)))
    assert local.default_workers() == workers


@pytest.mark.parametrize("line", ["0::/outer/inner", "4:cpu,cpuacct:/outer/inner"])
def test_quotas_of_groups_around_it_count(tmp_path, monkeypatch, line):
    """The least of all of them; that of another controller, or of a group beside it, is none."""
    old = not line.startswith("0")
    root = tmp_path / "cpu" if old else tmp_path
    for folder, quota in (("outer/inner", "max" if not old else "-1"), ("outer", "300000"), ("beside", "100000")):
        (root / folder).mkdir(parents=True, exist_ok=True)
        name = "cpu.cfs_quota_us" if old else "cpu.max"
        (root / folder / name).write_text(quota if old else f"{quota} 100000")
        (root / folder / "cpu.cfs_period_us").write_text("100000")
    (tmp_path / "cgroup").write_text(f"{line}\n7:memory:/beside\n")

    def path(name):
        return tmp_path / "cgroup" if name == "/proc/self/cgroup" else Path(name)

    monkeypatch.setattr(local, "Path", path)
    assert local.cpu_quota(tmp_path) == 3


@pytest.mark.parametrize(("weight", "number"), [(1.0, "300,000"), (3e5, "90,000,000,000")])
def test_too_many_samples(monkeypatch, weight, number):
    monkeypatch.setattr(plan, "available_memory", lambda: 2**20)
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
    monkeypatch.setattr(plan, "available_memory", lambda: 2**20)
    assert len(plan_cut(Samples(lengths=np.full(1000, 5, dtype=np.int32)), RESOLVED)[0].pieces) == 1000
