"""`--parallel`: degrees of all groups, checked as soon as they are read."""

from __future__ import annotations

import pytest

from packer_cli.config import PlanConfig, PlannedConfig, validate
from packer_cli.config.resolve import resolve
from packer_cli.errors import ConfigError
from packer_cli.format.layout import Layout
from packer_cli.plan.core.groups import Group

BAD = (
    "--parallel: {!r} is not a list of degrees such as tp=8,cp=2,pp=4: tp (tensor), cp (context), pp (pipeline) "
    "and vpp (parts of a stage), each once, at least 1; give SP degrees in --groups"
)

ALIKE = (
    "--gpus 64: a replica has 6 GPUs (sp1-cp2-tp3), which must divide it; choose 60 or 66, or plan with other degrees"
)
SMALLEST = (
    "--gpus 64: the smallest replicas have 6 GPUs, which must divide it and the other replicas, to fill the rest; "
    "choose a multiple of 6, or plan with other degrees, longer --groups or a lower --align"
)


def test_all_groups_get_the_degrees():
    config = validate(PlanConfig, {"groups": "16k,128k:2", "gpus": 64, "parallel": "pp=4,tp=8"})
    assert config.groups == (
        Group(capacity=16384, tp_size=8, pp_size=4),
        Group(capacity=131072, sp_size=2, tp_size=8, pp_size=4),
    )
    assert [group.layout for group in config.groups] == [Layout(tp=8, pp=4), Layout(sp=2, tp=8, pp=4)]
    assert PlannedConfig(**resolve(config).config.decisions()).groups == config.groups
    assert config.with_others(strategy="naive").groups == config.groups[-1:]


def test_a_group_may_have_degrees_of_its_own():
    groups = [{"capacity": "16k", "tp_size": 2}, {"capacity": "128k", "tp_size": 8}]
    config = validate(PlanConfig, {"groups": groups, "gpus": 8})
    assert [group.num_gpus for group in config.groups] == [2, 8]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"parallel": "tp=8,dp=2"}, BAD.format("tp=8,dp=2")),
        ({"parallel": "tp"}, BAD.format("tp")),
        ({"parallel": "tp=0"}, BAD.format("tp=0")),
        ({"parallel": "tp=2,tp=2"}, BAD.format("tp=2,tp=2")),
        (
            {"parallel": "cp=2", "groups": "16k,128k:2"},
            (
                "--groups: group 128k:2 has SP degree 2 and CP degree 2; rows are shared in one way only, so leave "
                "one of them at 1"
            ),
        ),
        (
            {"parallel": "tp=3,pp=2"},
            (
                "--gpus 64: a replica has 6 GPUs (sp1-tp3-pp2), which must divide it; choose 60 or 66, or plan with "
                "other degrees"
            ),
        ),
        ({"parallel": "tp=3,cp=2", "groups": "auto"}, ALIKE),
        ({"parallel": "tp=3,cp=2", "groups": "auto", "strategy": "wlb"}, ALIKE),
        ({"parallel": "tp=3,cp=2", "groups": "auto", "strategy": "flexsp:all"}, SMALLEST),
        (
            {"parallel": "tp=2", "groups": [{"capacity": 8192, "tp_size": 4}]},
            "--groups: group 8k:1 has degrees of its own (sp1-tp4), other than those of --parallel; give one",
        ),
        (
            {"groups": [{"capacity": 8192, "pp_size": 4}, {"capacity": 16384, "pp_size": 2}]},
            (
                "groups with different numbers of pipeline stages cannot run in lockstep; give --lockstep 1, or the "
                "same pp_size"
            ),
        ),
    ],
)
def test_wrong_degrees(options, message):
    with pytest.raises(ConfigError) as raised:
        validate(PlanConfig, {"groups": "16k", "gpus": 64, **options})
    assert str(raised.value) == message
