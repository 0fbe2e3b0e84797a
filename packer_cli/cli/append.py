"""`hbpack append`."""

from __future__ import annotations

from typing import Any

import click

from packer_cli.cli.command import Choice, Text, as_command, json_option, option
from packer_cli.cli.options import (
    engine_option,
    model_options,
    set_argument,
    set_tokenizer_option,
    wait_option,
    workers_option,
)
from packer_cli.config import GpuConfig, TokenizeConfig, WriteConfig
from packer_cli.remote.path import as_path


@as_command()
@set_argument
@click.argument("inputs", metavar="[NEW]...", nargs=-1, type=Text())
@set_tokenizer_option
@option("--moved", "moves", multiple=True, metavar="OLD=NEW")
@option("--gone", type=Choice(["keep", "drop"]))
@model_options(TokenizeConfig, ["allow_skipped", "recheck", "max_rejected", "strict"])
@model_options(WriteConfig, ["keep"])
@json_option("output/set")
@workers_option
@engine_option
@wait_option
def command(folder: str, inputs: tuple[str, ...], workers: str | None, engine: str | None, **values: Any) -> None:
    """Add data to a packed set, with the options it was made with.

    OUT is the output of `hbpack pack`, with its token store; NEW are inputs as for `hbpack pack`. Only the new data is
    tokenized. The result is the same as if you had packed old and new inputs together: a new plan mixes their samples,
    and makes a new version of the set; the earlier one stays. If automatic groups were chosen, they stay. The set's
    own files must be as they were; hbpack compares their contents. Files that came late to a folder or pattern of the
    set become new inputs, even without NEW.

    Run it again after a crash: it goes on, and adds nothing twice.

    Args:
        moves: An input of the set, or a folder above it, is at NEW now. Its contents must be the same.
        gone: What to do if files of the set's inputs are gone: keep their tokens, or drop them from the set.

    Examples::

        hbpack append OUT journals.jsonl
        hbpack append OUT --gone keep
    """
    from packer_cli.commands.engines import make_engine

    with make_engine(workers, engine) as running:
        from packer_cli.commands.append import run_append

        run_append(as_path(folder), inputs, running, **values)
    from packer_cli.cli.print_set import print_set

    print_set(folder, GpuConfig())
