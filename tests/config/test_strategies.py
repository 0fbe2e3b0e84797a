"""Strategies set the defaults of plan options, and nothing else."""

from __future__ import annotations

import json

import numpy as np
import pytest

from packer_cli.config import PlanConfig, PlannedConfig, StorePlanConfig, validate
from packer_cli.config.fields import GIVE, default_of
from packer_cli.config.groups import parse_group
from packer_cli.config.resolve import require_plan, resolve
from packer_cli.errors import ConfigError
from packer_cli.plan.core.cost import GroupCosts
from packer_cli.plan.core.groups import Group
from packer_cli.plan.strategies.hydraulis import candidates
from packer_cli.plan.strategies.registry import PACKED, STRATEGIES
from packer_cli.sizes import format_tokens

UNKNOWN_DEGREE = (
    "SP degree 64 is unknown to the model of the GPUs, which knows 1, 2, 4, 8, 16, 32; plan "
    "with one of these, or give a --profile that holds it"
)
GIVEN = {"groups": "16k:1,128k:8", "gpus": 8}
GROUPS = dict.fromkeys(
    ("balanced", "hbp", "flexsp:all", "flexsp", "batchada", "fcp", "bytescale", "megatron"), "16k:1,128k:8"
)
"""Of the strategies that use more than the longest."""

OWN_GROUPS = dict.fromkeys(("flexsp:all", "flexsp", "batchada", "megatron"), "16k:1,32k:2,64k:4,128k:8")
OWN_GROUPS |= dict.fromkeys(("fcp", "bytescale"), "16k:1,32k:2,48k:3,64k:4,80k:5,96k:6,112k:7,128k:8")
"""Of those that make more of them."""


@pytest.mark.parametrize("name", STRATEGIES)
def test_what_is_not_given_is_the_strategys(name):
    needed = {"global_tokens": 2**20} if "tokens of a step" in STRATEGIES[name].needs else {}
    given = {**GIVEN, "groups": GROUPS.get(name, "128k:8")}
    config = PlanConfig(**given, **needed, strategy=name)
    defaults = {key: default_of(field) for key, field in PlanConfig.model_fields.items()} | STRATEGIES[name].defaults
    for key in ("packing", "fill", "balance", "curriculum_steps", "cost", "seed"):
        assert getattr(config, key) == defaults[key]
    found = ",".join(f"{format_tokens(group.capacity)}:{group.layout.row_ranks}" for group in config.groups)
    assert found == OWN_GROUPS.get(name, given["groups"])
    assert config.model_fields_set == {"groups", "gpus", "strategy", *needed}


def test_the_default_is_the_balanced_one():
    assert PlanConfig(**GIVEN) == PlanConfig(**GIVEN, strategy="balanced")


def test_an_option_that_is_given_wins():
    config = PlanConfig(**GIVEN, strategy="hbp", packing="bfd", curriculum_steps=3)
    assert (config.packing, config.fill, config.balance, config.curriculum_steps) == ("bfd", "greedy", "sort", 3)


def test_other_strategies_keep_what_was_given():
    given = {**GIVEN, "balance": "window:8", "global_tokens": 2**20, "seed": 7}
    config = PlanConfig(**given)
    for name, strategy in STRATEGIES.items():
        kept = {option: value for option, value in given.items() if option not in strategy.ignores}
        kept["groups"] = GROUPS.get(name, "128k:8")
        assert config.with_others(strategy=name) == StorePlanConfig(**kept, strategy=name)


def test_what_a_plan_records_gives_the_same_options():
    config = resolve(PlanConfig(groups="128k:8", gpus=8, strategy="naive")).config
    assert PlannedConfig(**config.decisions()).decisions() == config.decisions()


@pytest.mark.parametrize("name", sorted(STRATEGIES.keys() - set(PACKED)))
def test_what_is_only_compared_is_not_planned_for_a_set(name):
    given = {"groups": "128k:8", "gpus": 8, "global_tokens": 2**20, "strategy": name}
    with pytest.raises(ConfigError) as error:
        require_plan(PlanConfig(**given))
    assert str(error.value).startswith(f"--strategy {name} shows what other code does (")
    assert str(error.value).endswith(f"run hbpack compare --strategies {name}, or give another strategy")


def test_groups_chosen_later_follow_the_strategy():
    auto = PlanConfig(groups="auto", gpus=8, strategy="longalign-packing")
    assert not auto.groups
    chosen = PlanConfig(**GIVEN).groups
    assert auto.with_groups(chosen).groups == chosen[-1:]
    assert PlanConfig(groups="auto", gpus=8).with_groups(chosen).groups == chosen


@pytest.mark.parametrize(
    ("groups", "gpus", "chosen"),
    [
        ("32k:1", 8, "32k:1"),
        ("128k:8", 8, "16k:1,32k:2,64k:4,128k:8"),
        ("16k:1,48k:3", 6, "16k:1,48k:3"),
        ("16k:1,30k:2,48k:3", 6, "16k:1,30k:2,48k:3"),
        ("16k:1,96k:6", 12, "16k:1,32k:2,48k:3,96k:6"),
        ("16k:1,128k:8", 12, "16k:1,32k:2,64k:4,128k:8"),
        ("100k:4", 4, "25600:1,51200:2,100k:4"),
        ("64k:1,128k:8", 8, "64k:1,128k:8"),
    ],
)
def test_flexsp_takes_every_degree_that_divides_the_longest(groups, gpus, chosen):
    config = PlanConfig(groups=groups, gpus=gpus, strategy="flexsp:all")
    assert config.groups == tuple(map(parse_group, chosen.split(",")))
    assert PlannedConfig(groups=chosen, gpus=gpus, strategy="flexsp:all").groups == config.groups


def test_flexsp_records_what_was_predicted(tmp_path):
    config = PlanConfig(**GIVEN, strategy="flexsp:all", model=str(llama(tmp_path)), gpu="h100")
    known = resolve(config).config
    assert known.group_costs is not None
    quadratic, linear, constant = np.array(known.group_costs).T
    assert (np.diff(quadratic) < 0).all()
    assert quadratic * [1, 2, 4, 8] == pytest.approx([quadratic[0]] * 4, rel=1e-5)
    assert (linear * [1, 2, 4, 8])[1:].min() > linear[0]  # Communication.
    assert constant[1] > constant[0] > 0
    again = PlannedConfig(**known.decisions())
    rules = resolve(again).request
    assert GroupCosts.of(rules.groups, rules.rates).rates[:3].T.tolist() == [list(each) for each in known.group_costs]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, f"--strategy flexsp:all needs {GIVE}"),
        ({"model": "MODEL", "gpu": "h100", "groups": "16k:1,1m:64", "gpus": 64}, UNKNOWN_DEGREE),
    ],
)
def test_flexsp_needs_a_model_that_knows_its_degrees(tmp_path, options, message):
    given = {**GIVEN, **options}
    if "model" in given:
        given["model"] = str(llama(tmp_path))
    with pytest.raises(ConfigError) as error:
        resolve(PlanConfig(**given, strategy="flexsp:all"))
    assert str(error.value) == message


def test_a_degree_that_the_heads_do_not_allow_is_refused_by_every_strategy(tmp_path):
    model = {"model": str(llama(tmp_path)), "gpu": "h100"}
    given = {"groups": "16k:1,1m:64", "gpus": 64}
    resolve(PlanConfig(**given))  # Without a model nobody knows.
    with pytest.raises(ConfigError) as error:
        resolve(PlanConfig(**given, **model))
    assert str(error.value) == UNKNOWN_DEGREE


def test_hydraulis_records_its_schemes_and_what_was_predicted(tmp_path):
    given = {"groups": "32k", "gpus": 16, "global_tokens": 2**18, "strategy": "hydraulis"}
    known = resolve(PlanConfig(**given, model=str(llama(tmp_path)), gpu="h100")).config
    assert known.group_costs is not None
    assert len(known.groups) == len(known.group_costs) > 1
    again = PlannedConfig(**known.decisions())
    assert again.lockstep == "1"
    assert again.packing == "search"
    published = PlannedConfig(**known.model_copy(update={"packing": "published"}).decisions())
    assert resolve(published).request.algorithm.name == "published"
    rules = resolve(again).request
    assert rules.lockstep == 1
    costs = GroupCosts.of(rules.groups, rules.rates)
    assert costs.rates[:3].T.tolist() == [list(each) for each in known.group_costs]
    assert costs.enough.min() == 384


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"global_tokens": None},
            "--strategy hydraulis needs --global-tokens: it plans the samples of each step",
        ),
        ({}, f"--strategy hydraulis needs {GIVE}"),
        (
            {"step_mix": "alternate"},
            "--step-mix has no effect on --strategy hydraulis, which packs in its own way; leave it out",
        ),
        (
            {"align": 16},
            (
                "--strategy: strategy hydraulis does not support --align 16; leave that out, or choose one of "
                "balanced, hbp, naive, longalign-packing, flexsp:all, flexsp, batchada, fcp, "
                "bytescale, megatron, dp-balanced, wlb, "
                "fixed-4d, plain-4d"
            ),
        ),
        (
            {"gpus": 1, "model": "MODEL", "gpu": "h100:memory=400GiB", "groups": "16m"},
            (
                "--strategy hydraulis: no pipeline on 1 GPU holds a sample of 16,777,216 tokens in memory; give "
                "shorter --groups, higher --parallel degrees, or more GPUs"
            ),
        ),
        (
            {"gpus": 8, "model": "MODEL", "gpu": "h100", "parallel": "tp=2", "groups": "1m"},
            (
                "--strategy hydraulis: no pipeline up to --parallel tp=2,cp=1,pp=1 on 8 GPUs holds a sample of "
                "1,048,576 tokens in memory; give shorter --groups, higher --parallel degrees, or more GPUs"
            ),
        ),
    ],
)
def test_hydraulis_needs_steps_and_a_model_whose_pipelines_hold_the_samples(tmp_path, options, message):
    given = {"groups": "32k", "gpus": 16, "global_tokens": 2**18, "strategy": "hydraulis", **options}
    if "model" in given:
        given["model"] = str(llama(tmp_path))
    with pytest.raises(ConfigError) as error:
        checked(given)
    assert str(error.value) == message


def checked(given):
    config = validate(PlanConfig, given)
    require_plan(config)
    return resolve(config).config


def test_options_without_effect_are_refused():
    with pytest.raises(ConfigError) as error:
        require_plan(validate(PlanConfig, {**GIVEN, "strategy": "flexsp:all", "packing": "bfd"}))
    assert (
        str(error.value)
        == "--packing has no effect on --strategy flexsp:all, which packs in its own way; leave it out"
    )
    other = PlanConfig(**GIVEN, packing="bfd", fill="longest", balance="window:4").with_others(strategy="flexsp:all")
    assert other == StorePlanConfig(**GIVEN, strategy="flexsp:all", balance="window:4")


def test_packers_of_its_own_are_not_those_of_others():
    other = PlanConfig(**GIVEN, packing="bfd", fill="longest", seed=3).with_others(strategy="wlb")
    assert other == StorePlanConfig(groups="128k:8", gpus=8, strategy="wlb", seed=3)


def llama(folder):
    """The shape of Llama 3.1 8B."""
    file = folder / "config.json"
    shape = {
        "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32,
        "num_hidden_layers": 32, "num_key_value_heads": 8, "vocab_size": 128256,
    }  # fmt: skip
    file.write_text(json.dumps(shape))
    return file


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"strategy": "best"},
            f"--strategy: unknown strategy 'best'; known: {', '.join(PACKED)}",
        ),
        (
            {"strategy": "naive", "groups": "128k:8,16k:1"},
            "groups must have rising capacities, got 128k,16k; sort them",
        ),
    ],
)
def test_wrong_options(options, message):
    with pytest.raises(ConfigError) as error:
        validate(PlanConfig, {**GIVEN, **options})
    assert str(error.value) == message


def test_the_schemes_of_hydraulis_decide_whether_attention_times_are_needed(monkeypatch, tmp_path, repo):
    """Only they know of context parallelism, which the options need not name."""
    profile = json.loads((repo / "tests/groups/data/hbp-table-4.json").read_text())
    profile["pieces"] = [{"queries": 1, "keys": 256, "seconds": 1.0}]
    (tmp_path / "profile.json").write_text(json.dumps(profile))
    scheme = candidates.Scheme(Group(capacity=2**16, cp_size=2), (1.0, 1.0, 0.0))
    monkeypatch.setattr(candidates, "find_schemes", lambda *_: [scheme])
    options = {"groups": "64k", "gpus": 32, "global_tokens": 2**20, "profile": str(tmp_path / "profile.json")}
    config = resolve(validate(PlanConfig, {**options, "strategy": "hydraulis"})).config
    assert config.attention_pieces == ((1, 256, 1.0),)


def test_groups_that_a_strategy_cannot_run_do_not_go_over_to_it():
    """Three GPUs a replica do not divide eight; nor are they left out where degrees mix."""
    config = PlanConfig(groups="16k:1,128k:8", gpus=8, strategy="fcp", global_tokens=2**20)
    assert [group.cp_size for group in config.groups] == [1, 2, 3, 4, 5, 6, 7, 8]
    assert [group.cp_size for group in config.with_others(strategy="balanced").groups] == [1, 2, 4, 8]
    assert [group.cp_size for group in config.with_others(strategy="bytescale").groups] == [1, 2, 3, 4, 5, 6, 7, 8]
    assert [group.cp_size for group in config.with_others(strategy="dp-balanced").groups] == [8]
