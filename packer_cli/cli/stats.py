"""`hbpack stats`."""

from __future__ import annotations

from typing import Any

from packer_cli.cli.command import as_command, json_option
from packer_cli.cli.console import print_json, print_tables, say_next, shown_command
from packer_cli.cli.options import config_option, model_options, path_argument
from packer_cli.config import BoundConfig, PlanConfig
from packer_cli.panels import Panel
from packer_cli.sizes import counted


@as_command()
@path_argument
@json_option("output/stats", Panel.OUTPUT)
@model_options(BoundConfig)
@model_options(PlanConfig, is_optional=True)
@config_option
def command(path: str, **values: Any) -> None:
    """Report balance, padding and communication of a packed set, a token store or lengths.

    PATH is a packed data set or a plan, reported as it is; or a token store or a file of lengths (.npy, or text with
    one integer a line), planned in memory with the options below. Without --groups and --gpus, only the lengths of
    these two are reported; --strategy wlb needs --gpus alone.

    Examples::

        hbpack stats OUT
        # The same samples in another plan, without writing it
        hbpack stats OUT --groups 8k:4 --gpus 16
    """
    from packer_cli.commands.stats import stats

    found = stats(path, **values)
    if print_json(found):
        return
    from packer_cli.tables.stats import stats_tables

    print_tables(*stats_tables(found))
    overall = found.overall
    if overall:
        what = f"{counted(overall.num_packs, 'pack')} in {counted(overall.num_iterations, 'iteration')}"
        if found.lengths:
            say_next(f"{what}, not written", "hbpack pack or hbpack plan with the same options")
        else:
            say_next(what, f"{shown_command('hbpack', 'simulate', path)} --model CONFIG.JSON --gpu NAME")
    elif found.lengths:
        what = f"{counted(found.lengths.num_samples, found.unit)}, {counted(found.lengths.num_tokens, 'token')}"
        say_next(what, f"{shown_command('hbpack', 'groups', path)} --model CONFIG.JSON --gpu NAME --gpus N")
