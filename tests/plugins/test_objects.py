"""Strategies and packings that are given as objects: planned, compared, proved, refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import packer_cli as hbpack
from packer_cli.errors import ConfigError, RunError
from packer_cli.plugins import OBJECT, Registry
from packer_cli.testing import check_packing, check_strategy
from tests.plugins.objects import LENGTHS, Longest, one_each

MODEL = Path(__file__).parents[2] / "examples" / "sample" / "model"


def test_objects_are_planned_and_compared_but_not_written(repo, tmp_path):
    plan = hbpack.plan(LENGTHS, groups="100:1", gpus=2, packing=one_each, strategy=Longest)
    assert len(plan.arrays.packs) == len(LENGTHS)
    assert plan.config.packages == {"strategy": OBJECT, "packing": OBJECT}
    found = hbpack.compare(LENGTHS, groups="50:1,100:1", gpus=2, strategies=["balanced", Longest(), "padded"])
    assert [(row.name, row.error) for row in found.rows] == [
        ("balanced", None), ("longest-only", None), ("padded", None)
    ]  # fmt: skip
    assert [str(group) for group in found.rows[1].config.groups] == ["100:1"]
    packings = hbpack.compare(LENGTHS, groups="100:1", gpus=2, algorithms=["bfd", one_each, "/none"])
    assert [row.overall.num_packs for row in packings.rows][:2] == [30, 60]
    sample = repo / "examples" / "sample"
    with pytest.raises(ConfigError, match="strategy 'longest-only' is an object of this process"):
        hbpack.pack(
            sample / "chats.jsonl", output=tmp_path / "OUT", tokenizer=sample / "tokenizer", groups="8k:1", gpus=1,
            strategy=Longest,
        )  # fmt: skip


@pytest.mark.parametrize(
    ("offsets", "order", "why"),
    [
        ([0, 1, 3], [0, 1, 1], "sample 1 is in 2 packs, not in one"),
        ([0, 3], [0, 1, 2], "its pack 0 has 12 tokens, and the capacity is 10"),
        ([0, 0, 3], [0, 1, 2], "its pack 0 is empty"),
        ([0, 2], [0, 1, 2], "its offsets must go from 0 to 3, the number of samples"),
        ([0, 2], [0, 1], "it packs 2 samples of 3"),
        ([0, 1, 3], [0, 1, 3], "its order must number samples from 0 to 2"),
        ([0.0, 3.0], [0, 1, 2], "its offsets must be one row of integers in numpy, got float64[2]"),
    ],
)
def test_wrong_packs_are_found(offsets, order, why):
    def wrong(lengths, capacity, seed):
        return np.array(offsets), np.array(order)

    with pytest.raises(hbpack.HbpackError) as error:
        hbpack.plan([4, 4, 4], groups="10:1", gpus=1, packing=wrong)
    assert str(error.value) == f"packing 'wrong' broke the rules of a packing: {why}"
    with pytest.raises(AssertionError):
        check_packing(wrong)


def one_each_named(name):
    def packing(lengths, capacity, seed):
        return one_each(lengths, capacity, seed)

    packing.__name__ = name
    return packing


def test_what_is_no_packing_is_refused():
    for thing, why in ((5, "--packing must be text, got 5"), (lambda: 1, "'<lambda>' is not a valid name")):
        with pytest.raises(ConfigError, match=why):
            hbpack.plan([5], groups="10:1", gpus=1, packing=thing)
    with pytest.raises(ConfigError, match="strategy 'one-each' cannot be used: it must be a Strategy, not function"):
        hbpack.plan([5], groups="10:1", gpus=1, strategy=one_each)
    with pytest.raises(ConfigError, match="packing algorithm 'bfd' is hbpack's own; give yours another name"):
        Registry("packings", "packing algorithm", {"bfd": 1}, lambda name, thing: thing).add(one_each_named("bfd"))


def raises(lengths, capacity, seed):
    raise KeyError("boom")


class Raises(Longest):
    name = "raises"

    def plan(self, pieces, request):
        raise KeyError("boom")


class NoGroups(Longest):
    name = "no-groups"

    def groups(self, given):
        return given[5]


class NoPrediction(Longest):
    name = "no-prediction"

    def predict(self, options, load, wants_cost):
        return load("it")["cost"]


class NoPlan(Longest):
    name = "no-plan"

    def plan(self, pieces, request):
        return None


def test_errors_of_others_say_whose_they_are():
    for options, why in (
        ({"packing": raises}, "packing 'raises' failed: KeyError: 'boom'"),
        ({"strategy": Raises}, "strategy 'raises' failed: KeyError: 'boom'"),
        ({"strategy": NoPlan}, "strategy 'no-plan' failed: TypeError: its plan is a NoneType"),
        ({"strategy": NoGroups}, "strategy 'no-groups' failed: IndexError: tuple index out of range"),
        (
            {"strategy": NoPrediction, "model": MODEL, "gpu": "h100"},
            "strategy 'no-prediction' failed: TypeError: 'GpuModel' object is not subscriptable",
        ),
    ):
        with pytest.raises(RunError) as error:
            hbpack.plan(LENGTHS, groups="100:1", gpus=2, **options)
        assert str(error.value) == why
    for check, thing in ((check_packing, raises), (check_strategy, Raises)):
        with pytest.raises(AssertionError, match="failed: KeyError: 'boom'"):
            check(thing)


class Seeded(Longest):
    summary = "with a seed of its own"

    def __init__(self, seed):
        self.seed, self.name = seed, f"seeded-{seed}"

    def plan(self, pieces, request):
        return super().plan(pieces, replace(request, seed=self.seed))


def test_every_object_has_a_row_of_its_own():
    found = hbpack.compare(LENGTHS, groups="100:1", gpus=2, strategies=["balanced", Seeded(1), Seeded(2), Longest])
    assert [row.name for row in found.rows] == ["balanced", "seeded-1", "seeded-2", "longest-only"]
    with pytest.raises(ConfigError, match="5 names no strategy"):
        hbpack.compare(LENGTHS, groups="100:1", gpus=2, strategies=["balanced", 5])
