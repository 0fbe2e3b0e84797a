"""Strategies set the defaults of plan options, and nothing else."""

from __future__ import annotations

import pytest

from packer_cli.config import PlanConfig, validate
from packer_cli.config.strategies import STRATEGIES
from packer_cli.errors import ConfigError

GIVEN = {"groups": "16k:1,128k:8", "gpus": 8}


@pytest.mark.parametrize("name", STRATEGIES)
def test_what_is_not_given_is_the_strategys(name):
    config = PlanConfig(**GIVEN, strategy=name)
    defaults = {key: field.default for key, field in PlanConfig.model_fields.items()} | STRATEGIES[name].defaults
    for key in ("packing", "fill", "balance", "curriculum_steps", "cost", "seed"):
        assert getattr(config, key) == defaults[key]
    longest = ["128k:8"]
    assert list(map(str, config.groups)) == (longest if STRATEGIES[name].is_one_group else ["16k:1", *longest])
    assert config.model_fields_set == {"groups", "gpus", "strategy"}


def test_the_default_is_the_balanced_one():
    assert PlanConfig(**GIVEN) == PlanConfig(**GIVEN, strategy="balanced")


def test_an_option_that_is_given_wins():
    config = PlanConfig(**GIVEN, strategy="hbp", packing="bfd", curriculum_steps=3)
    assert (config.packing, config.fill, config.balance, config.curriculum_steps) == ("bfd", "greedy", "sort", 3)


def test_other_strategies_keep_what_was_given():
    given = {**GIVEN, "balance": "window:8", "seed": 7}
    config = PlanConfig(**given)
    for name in STRATEGIES:
        assert config.with_strategy(name) == PlanConfig(**given, strategy=name)


def test_what_a_plan_records_gives_the_same_options():
    config = PlanConfig(**GIVEN, strategy="naive")
    assert PlanConfig(**config.decisions()).decisions() == config.decisions()


def test_groups_chosen_later_follow_the_strategy():
    auto = PlanConfig(groups="auto", gpus=8, strategy="longalign")
    assert auto.is_auto
    chosen = PlanConfig(**GIVEN).groups
    assert auto.with_groups(chosen).groups == chosen[-1:]
    assert PlanConfig(groups="auto", gpus=8).with_groups(chosen).groups == chosen


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"strategy": "best"}, "--strategy must be one of 'balanced', 'hbp', 'naive' or 'longalign', got 'best'"),
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
