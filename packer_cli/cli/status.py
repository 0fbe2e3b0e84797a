"""`hbpack status`."""

from __future__ import annotations

import shlex
import sys
from typing import TYPE_CHECKING, Any

from packer_cli.cli.command import as_command, json_option
from packer_cli.cli.console import print_json, print_line, print_tables, say_next, shown_command
from packer_cli.cli.options import config_option, model_options, set_argument
from packer_cli.config.set_options import StatusConfig
from packer_cli.tables.table import Table

if TYPE_CHECKING:
    from packer_cli.commands.status import ArrayStatus, Status

_MOST_RUNNING = 8
_REMEDIES = {
    "tokens": "run the same hbpack tokenize or hbpack pack again",
    "plan": "hbpack plan {} --groups GROUPS --gpus N",
    "shards": "hbpack write {}",
    "export": "run the same hbpack export again",
}
"""Commands that make a stage which is not complete."""


@as_command()
@set_argument
@model_options(StatusConfig)
@json_option("output/status")
@config_option
def command(folder: str, stage: Any) -> None:
    """Say what is done, what is missing, and which tasks of a job array are left to run.

    OUT is the output of any hbpack command that writes a folder. This takes a moment and writes nothing: it checks no
    files; `hbpack verify` does.

    Exit codes: 0 complete, 1 something is missing, 2 wrong usage.

    Examples::

        hbpack status OUT
        # The shards alone, for a script
        hbpack status OUT --stage shards --json
    """
    from packer_cli.commands.status import status

    found = status(folder, stage=stage)
    if not print_json(found):
        _print(found, folder)
    if not found.complete:
        sys.exit(1)


def _print(status: Status, folder: str) -> None:
    rows = tuple((each.stage, each.state, each.summary) for each in status.stages)
    print_line(f"{folder}: {'complete' if status.complete else 'not complete'}")
    print_tables(Table(title="", header=("stage", "state", ""), rows=rows, is_text=True))
    if status.running is not None:
        print_line(f"An hbpack run writes here: process {status.running.pid} on {status.running.host}.")
    for each in status.stages:
        if each.array is not None:
            _print_array(each.array)
    if status.complete:
        say_next(f"{folder} is complete", shown_command("hbpack", "stats", folder))
    elif not any(each.array for each in status.stages):
        first = next(each for each in status.stages if each.state != "complete")
        verb = "are" if first.stage.endswith("s") else "is"
        remedy = _REMEDIES[first.stage].format(shlex.quote(folder))
        say_next(f"The {first.stage} of {folder} {verb} {first.state}", remedy)


def _print_array(array: ArrayStatus) -> None:
    if array.running:
        tasks = [(each.task, each.host) for each in array.running[:_MOST_RUNNING]]
        shown = [f"{array.pin.id_of(task)} on {host}" for task, host in tasks if task is not None]
        more = len(array.running) - len(shown)
        print_line(f"Running: {', '.join(shown)}{f' and {more:,} more' if more else ''}.")
    if array.missing:
        print_line(
            f"Missing: run the same command with --array={array.expression} in Slurm, or with "
            f"--shard I/{array.num_tasks} for each of the missing tasks."
        )
    elif not array.running:
        print_line(
            f"All tasks are done, and none completed the output; run one again, with --shard 0/{array.pin.num_tasks}."
        )
