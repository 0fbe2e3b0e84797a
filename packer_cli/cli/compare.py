"""`hbpack compare`."""

from __future__ import annotations

import json
from typing import Any, Literal

import click

from packer_cli.api.compare import compare
from packer_cli.cli.options import (
    bound_option,
    config_option,
    inputs_argument,
    model_options,
    workers_option,
)
from packer_cli.config import PlanConfig, TokenizeConfig
from packer_cli.errors import RunError


@click.command("compare")
@inputs_argument
@model_options(PlanConfig)
@click.option(
    "--algorithms",
    metavar="ROW,...",
    help="Only these rows: [PACKING][/BALANCE][@longest], such as isf,bfd,/window:8 or isf:rounds=10/none; what "
    "a row leaves out is as in --packing, --balance and --groups, and @longest is the longest group alone.",
)
@click.option(
    "--strategies",
    metavar="all|NAME,...",
    help="Only a row for each of these values of --strategy, on the same groups and GPUs.",
)
@click.option(
    "--sort",
    metavar="COLUMN",
    help="Sort by a column of the table, such as abr, packs or time; -COLUMN sorts in descending order.",
)
@click.option("--json", "as_json", is_flag=True, help="JSON with the keys config, lengths, counts and rows.")
@bound_option
@model_options(TokenizeConfig)
@workers_option
@config_option
def command(
    inputs: tuple[str, ...],
    algorithms: str | None,
    strategies: str | None,
    sort: str | None,
    as_json: bool,
    bound: Literal["l2", "lp"],
    workers: int | None,
    **values: Any,
) -> None:
    """Compare packing algorithms, balances or whole strategies side by side on your own lengths.

    INPUT is a file of lengths (.npy, or text with one integer a line), a token store, or a packed data set that keeps
    its tokens; or, with --tokenizer, a corpus as `hbpack pack` takes it. Nothing is kept.

    Without --algorithms there is a row for each packing algorithm with the --balance given, one for each balance with
    the --packing given, and one for each baseline of the papers. Each is planned in a process of its own, checked and
    measured; with --model and --gpu, or --profile, the epoch's time is predicted as well (`hbpack simulate` says where
    it goes).
    """
    comparison = compare(
        inputs, algorithms=algorithms, strategies=strategies, sort=sort, bound=bound, workers=workers, **values
    )
    if as_json:
        click.echo(json.dumps(comparison.values(), indent=2))
    else:
        from packer_cli.cli.tables.compare import print_comparison

        print_comparison(comparison)
    if all(row.figures is None for row in comparison.rows):
        raise RunError("every plan failed, for the reasons above")
