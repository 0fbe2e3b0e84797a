"""`hbpack report`."""

from __future__ import annotations

from typing import Any

from packer_cli.cli import options
from packer_cli.cli.command import Text, as_command, json_option, option
from packer_cli.cli.console import print_json, say_next
from packer_cli.commands.output_file import begins_with, output_file
from packer_cli.config import GpuConfig, PlanConfig, TrainConfig, validate
from packer_cli.panels import Panel


@as_command()
@options.path_argument
@options.output_file_option("report.html", "Page to write.", Text)
@options.model_options(PlanConfig, is_optional=True)
@options.model_options(TrainConfig)
@option("--strategies", metavar="all|none|NAME,...", default="all", show_default=True)
@json_option("output/report", Panel.OUTPUT)
@options.workers_option
@options.config_option
def command(path: str, output: str, **values: Any) -> None:
    """Write a page with charts of a packed set, a plan or lengths, and what to try next.

    PATH is a packed data set or a plan, shown as it is; or a token store or a file of lengths (.npy, or text with one
    integer a line), planned in memory with --groups and --gpus. Without these, only the lengths are shown.

    The page is one HTML file that opens offline: lengths, packs, balance, padding, other strategies, and what to try
    next. With --model and --gpu, or --profile, it also shows predicted times, GPU by GPU.

    Args:
        strategies: Strategies to compare the plan with.

    Examples::

        # A packed set, with predicted times
        hbpack report OUT --model model --gpu h100
        # Another plan of its samples, in a page of its own
        hbpack report OUT --groups 8k:4 --gpus 16 --output other.html
    """
    from packer_cli.report.page import MARK

    output_file(output, "report.html", begins_with(MARK))
    if not validate(GpuConfig, values).has_gpu_model:  # In a config file, they may be for another command.
        values |= {name: None for name in TrainConfig.model_fields if not options.is_typed(name)}
    from packer_cli.commands.report import report

    found = report(path, output=output, **values)
    if not print_json(found):
        say_next(f"Wrote {output}", "open it in a browser; it needs no network")
