"""`hbpack compare`."""

from __future__ import annotations

import json
from typing import Any

import click
from click.core import ParameterSource

from packer_cli.cli.options import config_option, inputs_argument, model_options, workers_option
from packer_cli.config import PlanConfig, TokenizeConfig, validate
from packer_cli.errors import ConfigError


@click.command("compare")
@inputs_argument
@model_options(PlanConfig)
@click.option(
    "--algorithms",
    metavar="ROW,...",
    help="Rows in place of all: [PACKING][/BALANCE][@longest], such as isf,bfd,/window:8 or isf:rounds=10/none; what "
    "a row leaves out is as in --packing, --balance and --groups, and @longest is the longest group alone.",
)
@click.option(
    "--sort",
    metavar="COLUMN",
    help="Least first in a column of the table, such as abr, packs or time; -COLUMN is greatest first.",
)
@click.option("--json", "as_json", is_flag=True, help="JSON with the keys config, lengths and rows.")
@model_options(TokenizeConfig)
@workers_option
@config_option
@click.pass_context
def command(
    ctx: click.Context, algorithms: str | None, sort: str | None, as_json: bool, workers: int | None, **values: Any
) -> None:
    """Packing algorithms and ways to balance side by side, on your own lengths.

    INPUT is a file of lengths (.npy, or text with one integer a line), a token store, or a packed data set that keeps
    its tokens; or, with --tokenizer, a corpus as `hbpack pack` takes it. Nothing is kept.

    Without --algorithms there is a row for each packing algorithm with the --balance given, one for each balance with
    the --packing given, and one for each baseline of the papers. Each is planned in a process of its own, checked and
    measured.
    """
    from packer_cli.report.compare.table import parse_sort, print_comparison, sort_rows

    config = validate(PlanConfig, _of(PlanConfig, values))
    order = None if sort is None else parse_sort(sort)
    _refuse_without_tokenizer(ctx, values)
    from packer_cli.pipeline import run_compare

    corpus = validate(TokenizeConfig, _of(TokenizeConfig, values)) if values["tokenizer"] is not None else None
    comparison = run_compare(values["inputs"], corpus, config, algorithms, workers)
    comparison["rows"] = sort_rows(comparison["rows"], order)
    if as_json:
        click.echo(json.dumps(comparison, indent=2))
        return
    print_comparison(comparison, config)


def _of(model: type[PlanConfig] | type[TokenizeConfig], values: dict[str, Any]) -> dict[str, Any]:
    return {name: values[name] for name in model.model_fields}


def _refuse_without_tokenizer(ctx: click.Context, values: dict[str, Any]) -> None:
    """Options of a corpus that would do nothing."""
    if values["tokenizer"] is not None:
        return
    for parameter in ctx.command.params:
        is_of_corpus = parameter.name in TokenizeConfig.model_fields and parameter.name != "inputs"
        if is_of_corpus and ctx.get_parameter_source(str(parameter.name)) is ParameterSource.COMMANDLINE:
            raise ConfigError(f"{parameter.opts[0]} is for a corpus; give --tokenizer with it, or leave it out")
