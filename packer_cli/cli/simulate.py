"""`hbpack simulate`."""

from __future__ import annotations

import json
from typing import Any

import click

from packer_cli.api.simulate import simulate
from packer_cli.cli.options import (
    LocalPath,
    config_option,
    inputs_argument,
    model_options,
    workers_option,
)
from packer_cli.cli.output_file import begins_with, output_file
from packer_cli.cli.training_options import training_options
from packer_cli.config import PlanConfig, TokenizeConfig


@click.command("simulate")
@inputs_argument
@model_options(PlanConfig)
@training_options
@click.option(
    "--algorithms",
    metavar="ROW,...",
    help="Only these strategies, written as for hbpack compare, and the baseline.",
)
@click.option(
    "--sort",
    metavar="COLUMN",
    help="Sort by a column of hbpack compare; -COLUMN sorts in descending order.  [default: epoch]",
)
@click.option(
    "--trace",
    type=LocalPath(is_output=True),
    metavar="FILE",
    help="Also write the first steps of a packed set or plan as trace events, GPU by GPU, for Perfetto or Chrome.",
)
@click.option(
    "--trace-steps",
    type=click.IntRange(min=1),
    default=10,
    show_default=True,
    metavar="N",
    help="Steps of the trace.",
)
@click.option("--json", "as_json", is_flag=True, help="JSON: overall, groups, baseline; or config, lengths, rows.")
@model_options(TokenizeConfig)
@workers_option
@config_option
def command(
    inputs: tuple[str, ...],
    pad_to: Any,
    step_seconds: float,
    algorithms: str | None,
    sort: str | None,
    trace: str | None,
    trace_steps: int,
    as_json: bool,
    workers: int | None,
    **values: Any,
) -> None:
    """Predict an epoch's time, where the GPUs' time goes, and the savings over naive packing.

    INPUT is a packed data set or a plan.arrow, which is predicted as it is. With --groups and --gpus, it is anything
    that `hbpack compare` takes; every strategy is planned and predicted, the fastest first.

    Times are predicted from the model's shape and the GPU's data sheet (--model, --gpu), or from what `hbpack profile`
    measured (--profile).
    """
    if trace is not None:
        from packer_cli.stages.simulate import TRACE_MARK

        file = output_file(trace, "trace.json", begins_with(TRACE_MARK), option="--trace")
        values |= {"trace": file, "trace_steps": trace_steps}
    result = simulate(
        inputs,
        algorithms=algorithms,
        sort=sort,
        pad_to=pad_to,
        step_seconds=step_seconds,
        workers=workers,
        **values,
    )
    if as_json:
        click.echo(json.dumps(result.values(), indent=2))
        return
    from packer_cli.cli.tables.simulate import print_plan_simulation, print_strategies
    from packer_cli.compare import Comparison

    if isinstance(result, Comparison):
        print_strategies(result)
    else:
        print_plan_simulation(result)
