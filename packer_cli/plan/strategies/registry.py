"""The one list of strategies: it feeds the command line, the config's schema, the docs and the tests."""

from __future__ import annotations

from collections.abc import Mapping

from packer_cli.errors import ConfigError, did_you_mean
from packer_cli.plan.strategies.balanced import Balanced
from packer_cli.plan.strategies.flexsp.strategy import FlexSp
from packer_cli.plan.strategies.hbp import Hbp
from packer_cli.plan.strategies.hydraulis.strategy import Hydraulis
from packer_cli.plan.strategies.longalign import LongAlign
from packer_cli.plan.strategies.naive import Naive
from packer_cli.plan.strategies.protocol import Strategy
from packer_cli.plan.strategies.wlb.strategy import Wlb

STRATEGIES: Mapping[str, Strategy] = {
    strategy.name: strategy for strategy in (Balanced(), Hbp(), Naive(), LongAlign(), FlexSp(), Wlb(), Hydraulis())
}
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
        raise ConfigError(
            f"{name!r} is not a strategy{did_you_mean(name, STRATEGIES)}; known: {', '.join(STRATEGIES)}"
        )
    return STRATEGIES[name]
