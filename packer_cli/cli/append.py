"""`hbpack append`."""

from __future__ import annotations

from typing import Any

import click

from packer_cli.cli.command import Text, as_command, json_option, option
from packer_cli.cli.options import engine_options, model_options, set_argument, wait_option
from packer_cli.config import GpuConfig
from packer_cli.config.models import AppendConfig


@as_command()
@set_argument
@click.argument("inputs", metavar="[NEW]...", nargs=-1, type=Text())
@model_options(AppendConfig)
@option("--moved", multiple=True, metavar="OLD=NEW", help=AppendConfig.model_fields["moved"].description)
@json_option("output/set")
@engine_options
@wait_option
def command(folder: str, inputs: tuple[str, ...], **values: Any) -> None:
    """Add data to a packed set, with the options it was made with.

    OUT is the output of `hbpack pack`, with its token store; NEW are inputs as for `hbpack pack`. Only the new data is
    tokenized. The result is the same as if you had packed old and new inputs together: a new plan mixes their samples,
    and makes a new version of the set; the earlier one stays. If automatic groups were chosen, they stay. The set's
    own files must be as they were; hbpack compares their contents. Files that came late to a folder or pattern of the
    set become new inputs, even without NEW.

    Run it again after a crash: it goes on, and adds nothing twice.

    Examples::

        hbpack append OUT journals.jsonl
        hbpack append OUT --gone keep
    """
    from packer_cli.commands.stages import append

    append(folder, inputs, **values)
    from packer_cli.cli.print_set import print_set

    print_set(folder, GpuConfig())
