"""`hbpack restore`."""

from __future__ import annotations

import click

from packer_cli.cli.command import Folder, as_command, json_option
from packer_cli.cli.options import config_option, wait_option
from packer_cli.cli.versions import print_versions


@as_command()
@click.argument("version", metavar="OUT@N", type=Folder())
@json_option("output/versions")
@wait_option
@config_option
def command(version: str) -> None:
    """Make an earlier version of a packed set the current one.

    Its plan and the index of its token store come back with it, so that `hbpack plan` and `hbpack append` go on from
    there. Nothing is removed, and the versions after it can be restored as well.

    Examples::

        hbpack restore OUT@1
    """
    from packer_cli.commands.versions import restore

    print_versions(restore(version))
