"""The one list of strategies: it feeds the command line, the config's schema, the docs and the tests."""

from __future__ import annotations

from collections.abc import Container, Iterable

from packer_cli.errors import ConfigError
from packer_cli.plan.strategies.by_group.strategy import (
    Axolotl,
    Balanced,
    BatchRebalance,
    Hbp,
    LongAlignPacking,
    LongAlignSorted,
    Naive,
    Padded,
    TrlBfd,
)
from packer_cli.plan.strategies.dynamic_cp.strategy import ByteScale, DpBalanced, Fcp, Megatron
from packer_cli.plan.strategies.flexsp.strategy import BatchAda, FlexSp, FlexSpAll
from packer_cli.plan.strategies.hydraulis.strategy import Hydraulis
from packer_cli.plan.strategies.protocol import Strategy, take_strategy
from packer_cli.plan.strategies.wlb.strategy import Fixed4d, Plain4d, Wlb
from packer_cli.plugins import Registry, unknown

_OWN = {
    strategy.name: strategy
    for strategy in (
        Balanced(),
        Hbp(),
        Naive(),
        LongAlignPacking(),
        LongAlignSorted(),
        FlexSpAll(),
        FlexSp(),
        BatchAda(),
        Fcp(),
        ByteScale(),
        Megatron(),
        DpBalanced(),
        Wlb(),
        Fixed4d(),
        Plain4d(),
        Hydraulis(),
        TrlBfd(),
        Axolotl(),
        BatchRebalance(),
        Padded(),
    )
}

STRATEGIES: Registry[Strategy] = Registry("strategies", "strategy", _OWN, take_strategy)
"""By name, in the order of tables."""

PACKED = tuple(name for name, strategy in _OWN.items() if strategy.is_packed)
"""Those whose plans may be written."""
DEFAULT = Balanced.name
BASELINE = Naive.name
"""Which strategy a plan is compared with, unless its own strategy names another."""


def find_strategy(name: str) -> Strategy:
    """The strategy of that name.

    Raises:
        ConfigError: there is none.
    """
    if name not in STRATEGIES:
        raise ConfigError(unknown_strategy(name, packed_names()))
    return STRATEGIES[name]


_HEIRS = {"longalign": "longalign-packing or longalign-sorted"}
"""Names that strategies had, and what to name instead."""


def name_in_record(strategy: str, options: Container[str]) -> str:
    """The strategy by which a recorded plan was made, whose name may mean another one now.

    `longalign` packed sorted samples, which is neither of LongAlign's ways; its options are recorded, so it was
    `balanced` with those. `flexsp` planned the whole data set.

    Args:
        options: names of those recorded. FlexSP in batches has a packing.
    """
    if strategy == "longalign":
        return DEFAULT
    return FlexSpAll.name if strategy == FlexSp.name and "packing" not in options else strategy


def packed_names() -> tuple[str, ...]:
    """What `--strategy` takes: hbpack's own that may be written, and those of other packages."""
    return (*PACKED, *STRATEGIES.names()[len(STRATEGIES) :])


def unknown_strategy(name: str, known: Iterable[str]) -> str:
    """What to say of a name that no strategy has, where these are known."""
    if name in _HEIRS:
        return f"strategy {name!r} no longer exists; give {_HEIRS[name]}"
    return unknown("strategy", name, known)
