"""Options that say how a plan is trained, beyond what the plan says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from packer_cli.cli.command import Choice, option
from packer_cli.cli.param_types import FiniteRange
from packer_cli.panels import Panel


def training_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """`--pad-to` and `--step-seconds`: how a plan is trained, for predictions."""
    step_seconds = option(
        "--step-seconds",
        type=FiniteRange(min=0, max=86_400),
        default=0.0,
        show_default=True,
        panel=Panel.GROUPS,
        metavar="S",
        help="Fixed seconds of each optimizer step: gradient sync and optimizer.",
    )
    pad_to = option(
        "--pad-to",
        type=Choice(["multiple", "row", "capacity"]),
        default="multiple",
        show_default=True,
        panel=Panel.GROUPS,
        help="What the loader pads rows to.",
    )
    return pad_to(step_seconds(function))
