"""The text that names a packing and its options: what is read, and what is refused."""

from __future__ import annotations

import pytest
from numba.core.dispatcher import Dispatcher

from packer_cli.config import PlanConfig
from packer_cli.config.resolve import resolve
from packer_cli.errors import ConfigError
from packer_cli.plan.packing import REGISTRY, parse_packing
from packer_cli.plan.packing.isf import IsfOptions
from packer_cli.plan.strategies.registry import STRATEGIES


def refusal(**options):
    with pytest.raises(ConfigError) as error:
        resolve(PlanConfig(gpus=1, **options))
    return str(error.value)


def test_processes_find_packings_by_name():
    """A kernel that a process is given is compiled anew there."""
    for strategy in STRATEGIES.values():
        for name, algorithm in strategy.packings().items():
            functions = [algorithm.pack, algorithm.pack_needs, algorithm.cut]
            assert not any(isinstance(each, Dispatcher) for each in functions), (strategy.name, name)


def test_packings_that_the_options_rule_out_are_refused():
    assert refusal(packing="wrap", groups=["1k:1", "2k:1"]) == (
        "--packing: packing 'wrap' cuts samples, so it needs exactly one group; give one, or another packing"
    )
    assert refusal(packing="bfd-split", groups=["1k:1"], overflow="drop") == (
        "--packing: packing 'bfd-split' cuts what is longer than the greatest capacity, so it needs --overflow split, "
        "not drop; give that, or packing bfd"
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("best", f"unknown packing algorithm 'best'; known: {', '.join(REGISTRY)}"),
        (
            "spfhp:max_samples=-1",
            "option 'max_samples' must be at least 0 and at most 2147483647, got -1",
        ),
        (
            "spfhp:max_samples=2147483648",
            "option 'max_samples' must be at least 0 and at most 2147483647, got 2147483648",
        ),
        (
            "isf:round=3",
            "packing 'isf' has no option 'round=3'; known, with defaults: rounds=300, threshold=0.997",
        ),
        ("bfd:rounds=3", "packing 'bfd' has no option 'rounds=3'; known, with defaults: chunk=0"),
        ("isf:rounds=many", "option 'rounds' of packing 'isf' must be int, got 'many'"),
        ("isf:rounds=0", "option 'rounds' must be at least 1 and at most 2147483647, got 0"),
        ("isf:rounds=2147483648", "option 'rounds' must be at least 1 and at most 2147483647, got 2147483648"),
        ("isf:rounds=1,rounds=2", "option 'rounds' of packing 'isf' is given twice; keep one of them"),
        ("isf:threshold=nan", "option 'threshold' must be at least 0 and at most 1, got nan"),
        ("isf:threshold=2", "option 'threshold' must be at least 0 and at most 1, got 2.0"),
    ],
)
def test_bad_packing_text_names_the_remedy(text, message):
    with pytest.raises(ValueError) as error:
        parse_packing(text, REGISTRY)
    assert str(error.value) == message


def test_options_are_read():
    _, options = parse_packing("isf:rounds=3,threshold=0.5", REGISTRY)
    assert options == IsfOptions(rounds=3, threshold=0.5)
