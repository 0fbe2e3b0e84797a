"""`hbpack report`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from packer_cli.cli.command import Command, option
from packer_cli.cli.console import say_next
from packer_cli.cli.options import (
    config_option,
    first_given,
    model_options,
    workers_option,
)
from packer_cli.cli.output_file import begins_with, output_file
from packer_cli.cli.param_types import LocalPath, Text
from packer_cli.cli.training_options import training_options
from packer_cli.config import GpuConfig, PlanConfig, validate
from packer_cli.config.strategies import STRATEGIES
from packer_cli.errors import ConfigError
from packer_cli.remote.names import as_path


@click.command(
    "report",
    cls=Command,
    examples="""
    # A packed set, with predicted times
    hbpack report OUT --model model --gpu h100
    # Another plan of its samples, in a page of its own
    hbpack report OUT --groups 8k:4 --gpus 16 --output other.html
    """,
)
@click.argument("path", metavar="PATH", type=Text())
@option(
    "--output",
    "-o",
    type=LocalPath(is_output=True),
    default="report.html",
    show_default=True,
    metavar="FILE",
    help="Page to write.",
)
@model_options(PlanConfig, is_optional=True)
@training_options
@option(
    "--strategies",
    metavar="all|none|NAME,...",
    default="all",
    show_default=True,
    help="Strategies to compare the plan with.",
)
@workers_option
@config_option
@click.pass_context
def command(
    ctx: click.Context,
    path: str,
    output: str,
    pad_to: Any,
    step_seconds: float,
    strategies: str,
    workers: int | None,
    **values: Any,
) -> None:
    """Write a page with charts of a packed set, a plan or lengths, and what to try next.

    PATH is a packed data set or a plan, shown as it is; or a token store or a file of lengths (.npy, or text with one
    integer a line), planned in memory with --groups and --gpus. Without these, only the lengths are shown.

    The page is one HTML file that opens offline: lengths, packs, balance, padding, other strategies, and what to try
    next. With --model and --gpu, or --profile, it also shows predicted times, GPU by GPU.
    """
    gpu = validate(GpuConfig, values)
    if gpu.has_gpu_model:
        gpu.require_gpu_model("hbpack report")
    config = _plan_config(ctx, values)
    from packer_cli.report.page import MARK
    from packer_cli.simulate.figures import SimulateRules
    from packer_cli.stages.report import run_report

    file: Path = output_file(output, "report.html", begins_with(MARK))
    rules = SimulateRules(pad_to=pad_to, step_seconds=step_seconds)
    run_report(as_path(path), file, config, gpu, rules, strategies, workers)
    say_next(f"Wrote {output}", "open it in a browser; it needs no network")


def _plan_config(ctx: click.Context, values: dict[str, Any]) -> PlanConfig | None:
    """How to plan; None for what is planned, and for lengths alone."""
    strategy = STRATEGIES.get(values["strategy"] or "")  # The config refuses an unknown one.
    has_groups = values["groups"] is not None or (strategy is not None and "groups" in strategy.defaults)
    if has_groups and values["gpus"] is not None:
        config: PlanConfig = validate(PlanConfig, values)
        return config
    name = first_given(ctx, set(PlanConfig.model_fields) - set(GpuConfig.model_fields))
    if name is not None:
        needs = "--groups and --gpus" if not has_groups else "--gpus"
        raise ConfigError(f"{name} is for planning lengths, which needs {needs}; give them, or leave {name} out")
    return None
