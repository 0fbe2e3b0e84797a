"""The one list of strategies: it feeds the command line, the config's schema, the docs and the tests."""

from __future__ import annotations

from packer_cli.errors import ConfigError
from packer_cli.plan.strategies.by_group import strategy as by_group
from packer_cli.plan.strategies.dynamic_cp import strategy as dynamic_cp
from packer_cli.plan.strategies.flexsp import strategy as flexsp
from packer_cli.plan.strategies.hydraulis.strategy import Hydraulis
from packer_cli.plan.strategies.protocol import Strategy, take_strategy
from packer_cli.plan.strategies.wlb import strategy as wlb
from packer_cli.plugins import Registry, unknown

_OWN = {
    strategy.name: strategy
    for strategy in (
        by_group.Balanced(),
        by_group.Hbp(),
        by_group.Naive(),
        by_group.LongAlignPacking(),
        by_group.LongAlignSorted(),
        flexsp.FlexSpAll(),
        flexsp.FlexSp(),
        flexsp.BatchAda(),
        dynamic_cp.Fcp(),
        dynamic_cp.ByteScale(),
        dynamic_cp.Megatron(),
        dynamic_cp.DpBalanced(),
        wlb.Wlb(),
        wlb.Fixed4d(),
        wlb.Plain4d(),
        Hydraulis(),
        by_group.TrlBfd(),
        by_group.Axolotl(),
        by_group.BatchRebalance(),
        by_group.Padded(),
    )
}

STRATEGIES: Registry[Strategy] = Registry("strategies", "strategy", _OWN, take_strategy)
"""By name, in the order of tables."""

PACKED = tuple(name for name, strategy in _OWN.items() if strategy.is_packed)
"""Names of strategies whose plans may be written."""
DEFAULT = by_group.Balanced.name
BASELINE = by_group.Naive.name
"""Which strategy a plan is compared with, unless its own strategy names another."""


def find_strategy(name: str) -> Strategy:
    """Return the strategy of that name.

    Raises:
        ConfigError: there is none.
    """
    if name not in STRATEGIES:
        raise ConfigError(unknown("strategy", name, packed_names()))
    return STRATEGIES[name]


def packed_names() -> tuple[str, ...]:
    """Return the names that `--strategy` takes: hbpack's own that may be written, and those of other packages."""
    return (*PACKED, *STRATEGIES.names()[len(STRATEGIES) :])
