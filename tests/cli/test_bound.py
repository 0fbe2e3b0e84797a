"""`--bound lp`: the linear program proves more packs than sizes alone, in every command that reports them."""

from __future__ import annotations

import json

import numpy as np
import pytest

from packer_cli.plan.core.bounds import packs_lower_bound
from packer_cli.plan.packing.ilp import solver
from packer_cli.plan.packing.ilp.columns import lp_lower_bound
from tests.cli.conftest import GROUPS

ONE = ("--groups", "1k:1", "--gpus", 4)
TWO = ("--groups", "300:1,1k:1", "--gpus", 4)


@pytest.fixture(scope="module")
def lengths(tmp_path_factory):
    """Three hundred lengths that fit three or four to a pack of 1,024, and hardly ever exactly."""
    path = tmp_path_factory.mktemp("lengths") / "lengths.npy"
    np.save(path, np.random.default_rng(0).integers(235, 470, 300).astype(np.int32))
    return path


def bounds(stats):
    return {key: stats[key]["packs_lower_bound"] for key in ("overall", "baseline")}


def test_stats_of_lengths(hbpack, lengths):
    values = np.load(lengths)
    by_size, by_program = packs_lower_bound(values, 1024), lp_lower_bound(values, 1024)
    assert by_size < by_program
    without = json.loads(hbpack("stats", lengths, *ONE, "--json").stdout)
    assert bounds(without) == {"overall": by_size, "baseline": by_size}
    stats = json.loads(hbpack("stats", lengths, *ONE, "--bound", "lp", "--json").stdout)
    assert bounds(stats) == {"overall": by_program, "baseline": by_program}
    assert stats["groups"][0]["packs_lower_bound"] == by_program
    assert f"  {by_program:,}  " in hbpack("stats", lengths, *ONE, "--bound", "lp").stdout


def test_groups_add_up(hbpack, lengths):
    """The plan fills the longer packs with short samples, so each group's bound is of what it holds."""
    without = json.loads(hbpack("stats", lengths, *TWO, "--json").stdout)
    stats = json.loads(hbpack("stats", lengths, *TWO, "--bound", "lp", "--json").stdout)
    of_groups = [group["packs_lower_bound"] for group in stats["groups"]]
    assert stats["overall"]["packs_lower_bound"] == sum(of_groups) > without["overall"]["packs_lower_bound"]
    for key in ("overall", "baseline"):
        assert stats[key] | {"packs_lower_bound": 0} == without[key] | {"packs_lower_bound": 0}


@pytest.mark.usefixtures("rows_of_this_process")
def test_compare(hbpack, lengths):
    rows = ("--algorithms", "bfd,ffd@longest")
    done = hbpack("compare", lengths, *TWO, *rows, "--bound", "lp", "--json")
    by_row = {row["name"]: row["overall"]["packs_lower_bound"] for row in json.loads(done.stdout)["rows"]}
    assert by_row["ffd@longest"] == lp_lower_bound(np.load(lengths), 1024)
    stats = json.loads(hbpack("stats", lengths, *TWO, "--packing", "bfd", "--bound", "lp", "--json").stdout)
    assert by_row["bfd"] == stats["overall"]["packs_lower_bound"]


def test_a_packed_set_is_not_changed(hbpack, pack, chats, tmp_path):
    assert pack(chats).code == 0
    stored = json.loads(hbpack("stats", tmp_path / "out", "--json").stdout)
    stats = json.loads(hbpack("stats", tmp_path / "out", "--bound", "lp", "--json").stdout)
    for group, before in zip(stats["groups"], stored["groups"], strict=True):
        assert before["packs_lower_bound"] <= group["packs_lower_bound"] <= group["num_packs"]
    assert bounds(stats)["overall"] == sum(group["packs_lower_bound"] for group in stats["groups"])
    assert json.loads(hbpack("stats", tmp_path / "out", "--json").stdout) == stored


@pytest.mark.parametrize("option", [("--bound", "lp"), ("--packing", "ilp")])
def test_without_a_solver(hbpack, lengths, monkeypatch, option):
    monkeypatch.setattr(solver, "_has_highs", lambda: False)
    monkeypatch.setattr(solver, "_cbc_places", list)
    done = hbpack("stats", lengths, *GROUPS, *option)
    assert (done.code, done.stdout) == (1, "")
    assert done.stderr == (
        "error: PuLP has no solver: neither HiGHS nor CBC is installed; install HiGHS with 'pip install highspy', or "
        "choose what needs none: packing 'bfd', bound 'l2'\n"
    )
