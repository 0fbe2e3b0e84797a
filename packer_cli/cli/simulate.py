"""`hbpack simulate`."""

from __future__ import annotations

from typing import Any

import click

from packer_cli.cli import options
from packer_cli.cli.command import LocalPath, Text, as_command, columns, json_option, option
from packer_cli.cli.console import print_json, print_tables, say_next, shown_command, shown_options
from packer_cli.commands.output_file import begins_with, output_file
from packer_cli.config import GpuConfig, PlanConfig, TrainConfig, validate
from packer_cli.panels import Panel


@as_command()
@options.inputs_argument
@options.model_options(PlanConfig, is_optional=True)
@options.model_options(TrainConfig)
@option("--algorithms", metavar="ROW,...")
@option("--sort", metavar="COLUMN", type=Text(columns), show_default="epoch")
@option("--trace", type=LocalPath(), metavar="FILE", panel=Panel.OUTPUT)
@option("--trace-steps", type=click.IntRange(min=1), panel=Panel.OUTPUT, default=10, show_default=True, metavar="N")
@json_option("output/simulate", Panel.OUTPUT)
@options.corpus_options
def command(inputs: tuple[str, ...], trace: str | None, trace_steps: int, **values: Any) -> None:
    r"""Predict an epoch's time, where the GPUs' time goes, and the savings over naive packing.

    INPUT is a packed data set or a plan.arrow, which is predicted as it is. With --groups and --gpus, it is anything
    that `hbpack compare` takes; every strategy is planned and predicted, the fastest first.

    Times are predicted from the model's shape and the GPU's data sheet (--model, --gpu), or from what `hbpack profile`
    measured (--profile).

    Args:
        algorithms: Only these strategies, written as for hbpack compare, and the baseline.
        sort: Sort by a column of hbpack compare; -COLUMN sorts in descending order.
        trace: Also write the first steps of a packed set or plan as trace events, GPU by GPU, for Perfetto or Chrome.
        trace_steps: Steps of the trace.

    Examples::

        # A packed set, beside naive packing
        hbpack simulate OUT --model model --gpu h100
        # Several ways to pack the same samples
        hbpack simulate OUT --groups 1k:1,8k:4 --gpus 8 --algorithms bfs,isf/none \
            --model model --gpu h100
    """
    if trace is not None:
        from packer_cli.commands.simulate import TRACE_MARK

        file = output_file(trace, "trace.json", begins_with(TRACE_MARK), option="--trace")
        values["trace"] = file
    if trace is not None or options.is_typed("trace_steps"):  # In a config file, it may be for a run with a trace.
        values["trace_steps"] = trace_steps
    from packer_cli.commands.simulate import simulate

    result = simulate(inputs, **values)
    if print_json(result):
        return
    from packer_cli.cli.say_best import say_best
    from packer_cli.compare import Comparison
    from packer_cli.sizes import duration
    from packer_cli.tables.compare import simulation_table, strategies_table

    if isinstance(result, Comparison):
        print_tables(strategies_table(result))
        say_best(result)
    else:
        print_tables(simulation_table(result))
        what = f"An epoch takes {duration(result.overall.seconds)}, predicted"
        given = [word for kind in (GpuConfig, TrainConfig) for word in shown_options(validate(kind, values), kind)]
        say_next(what, shown_command("hbpack", "report", *inputs, *given))
