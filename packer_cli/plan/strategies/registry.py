"""The one list of strategies: it feeds the command line, the config's schema, the docs and the tests."""

from __future__ import annotations

from packer_cli.errors import ConfigError
from packer_cli.plan.strategies.balanced import Balanced
from packer_cli.plan.strategies.flexsp.strategy import FlexSp
from packer_cli.plan.strategies.hbp import Hbp
from packer_cli.plan.strategies.hydraulis.strategy import Hydraulis
from packer_cli.plan.strategies.longalign import LongAlign
from packer_cli.plan.strategies.naive import Naive
from packer_cli.plan.strategies.protocol import Strategy, take_strategy
from packer_cli.plan.strategies.wlb.strategy import Wlb
from packer_cli.plugins import Registry

_OWN = {
    strategy.name: strategy for strategy in (Balanced(), Hbp(), Naive(), LongAlign(), FlexSp(), Wlb(), Hydraulis())
}

STRATEGIES: Registry[Strategy] = Registry("strategies", "strategy", _OWN, take_strategy)
"""By name, in the order of tables."""

DEFAULT = Balanced.name
BASELINE = Naive.name
"""Which strategy a plan is compared with, unless its own strategy names another."""


def find_strategy(name: str) -> Strategy:
    """The strategy of that name.

    Raises:
        ConfigError: there is none.
    """
    if name not in STRATEGIES:
        raise ConfigError(STRATEGIES.unknown(name))
    return STRATEGIES[name]
