"""`hbpack compare`."""

from __future__ import annotations

from typing import Any

from packer_cli.cli.command import Text, as_command, columns, compared, json_option, option
from packer_cli.cli.console import print_json, print_tables
from packer_cli.cli.options import corpus_options, inputs_argument, model_options
from packer_cli.config import BoundConfig, PlanConfig, RepeatConfig
from packer_cli.errors import RunError
from packer_cli.panels import Panel


@as_command()
@inputs_argument
@model_options(PlanConfig)
@option("--algorithms", metavar="ROW,...")
@option("--strategies", metavar="all|NAME,...", type=Text(compared))
@option("--sort", metavar="COLUMN", type=Text(columns))
@option(
    "--columns",
    metavar="main|all|NAME,...",
    type=Text(lambda: ("main", "all", *columns())),
    default="main",
    show_default=True,
)
@json_option("output/compare", Panel.OUTPUT)
@model_options(BoundConfig)
@model_options(RepeatConfig)
@corpus_options
def command(inputs: tuple[str, ...], columns: str, **values: Any) -> None:
    r"""Compare packing algorithms, balances or whole strategies side by side on your own lengths.

    INPUT is a file of lengths (.npy, or text with one integer a line), a token store, or a packed data set that keeps
    its tokens; or, with --tokenizer, a corpus as `hbpack pack` takes it. Nothing is kept.

    Without --algorithms there is a row for each packing algorithm with the --balance given, one for each balance with
    the --packing given, and one for each baseline of the papers. Each is planned in a process of its own, checked and
    measured; with --model and --gpu, or --profile, the epoch's time is predicted as well (`hbpack simulate` says where
    it goes).

    Args:
        algorithms: Only these rows, as [PACKING][/BALANCE][@longest], such as isf,bfd,/window:8 or
            isf:rounds=10/none.

            What a row leaves out is as in --packing, --balance and --groups; @longest is the longest group alone.
        strategies: Only a row for each of these values of --strategy, on the same groups and GPUs.
        sort: Sort by a column of the table, such as abr, packs or time; -COLUMN sorts in descending order.
        columns: Columns of the table: those that matter most, all, or these, by the names that --sort takes.

    Examples::

        # Some packings and balances; without --algorithms, all of them
        hbpack compare OUT --groups 1k:1,8k:4 --gpus 8 \
            --algorithms bfs,isf/none,padded
        # The papers' strategies, by their predicted epochs
        hbpack compare OUT --groups 1k:1,8k:4 --gpus 8 --strategies all \
            --model model --gpu h100 --sort epoch
    """
    from packer_cli.tables.compare import parse_columns

    chosen = parse_columns(columns)
    from packer_cli.commands.compare import compare

    comparison = compare(inputs, **values)
    if not print_json(comparison):
        from packer_cli.cli.say_best import say_best
        from packer_cli.tables.compare import comparison_table

        print_tables(comparison_table(comparison, chosen))
        say_best(comparison)
    if all(row.overall is None for row in comparison.rows):
        raise RunError("every plan failed, for the reasons above")
