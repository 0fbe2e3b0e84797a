"""`hbpack prune`."""

from __future__ import annotations

import click

from packer_cli.cli.command import as_command, json_option, option
from packer_cli.cli.options import config_option, set_argument, wait_option
from packer_cli.cli.versions import print_versions


@as_command()
@set_argument
@option("--keep", type=click.IntRange(min=1), required=True, metavar="N")
@json_option("output/versions")
@wait_option
@config_option
def command(folder: str, keep: int) -> None:
    """Remove older versions of a packed set, and the token parts that only they use.

    The current version stays, whatever its age. A training that reads an older version ends when its files go.

    Args:
        keep: Number of versions to keep: the current one, and the newest others.

    Examples::

        hbpack prune OUT --keep 3
    """
    from packer_cli.commands.versions import prune

    print_versions(prune(folder, keep=keep))
