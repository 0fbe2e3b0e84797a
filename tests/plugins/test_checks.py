"""`hbpack.testing`: what it accepts, and what it finds."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import packer_cli as hbpack
from packer_cli.errors import ConfigError
from packer_cli.plan.strategies.by_group.strategy import GroupStrategy
from packer_cli.testing import check_packing, check_strategy
from tests.plugins.objects import LENGTHS, Longest, one_each


def test_the_checks_accept_what_the_page_brings(package):
    check_packing("two-ends")
    check_strategy("rising")


def by_chance(lengths, capacity, seed):
    order = np.random.default_rng().permutation(len(lengths))
    return np.arange(len(lengths) + 1), order


def greedy_hands(lengths, capacity, seed):
    lengths[:] = 1
    return np.arange(len(lengths) + 1), np.arange(len(lengths))


@pytest.mark.parametrize(
    ("packing", "why"), [(by_chance, "other packs the second time"), (greedy_hands, "changes the")]
)
def test_the_checks_find_a_wrong_packing(packing, why):
    with pytest.raises(AssertionError, match=why):
        check_packing(packing)


class Loses(Longest):
    name = "loses"

    def rest(self, plan, chosen, request, epoch):
        return super().rest(plan, chosen[1:], request, epoch)


class Declares(Longest):
    name = "declares"
    ignores = frozenset({"fills"})


class Defaults(Longest):
    name = "defaults"
    defaults = {"overflow": "drop"}


class Changing(Longest):
    name = "changing"

    def plan(self, pieces, request):
        return super().plan(pieces, replace(request, seed=int(np.random.default_rng().integers(1000))))


@pytest.mark.parametrize(
    ("strategy", "why"),
    [
        (Loses, "the rest of an epoch on 1 GPUs: "),
        (Changing, "another plan the second time"),
    ],
)
def test_the_checks_find_a_wrong_strategy(strategy, why):
    with pytest.raises(AssertionError, match=why):
        check_strategy(strategy)


class Nameless(GroupStrategy):
    pass


@pytest.mark.parametrize(
    ("strategy", "why"),
    [
        (Declares, "strategy 'declares' cannot be used: its ignores name 'fills', which is not a plan option"),
        (Defaults, "its defaults name 'overflow', whose default is the same for all strategies"),
        (Nameless, "cannot be used: it has no 'name'"),
        (one_each, "strategy 'one-each' cannot be used: it must be a Strategy, not function"),
    ],
)
def test_a_strategy_that_declares_nonsense_is_refused(strategy, why):
    for use in (check_strategy, lambda each: hbpack.plan(LENGTHS, groups="100:1", gpus=2, strategy=each)):
        with pytest.raises(ConfigError, match=why):
            use(strategy)
