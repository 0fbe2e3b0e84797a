"""`hbpack versions`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from packer_cli.cli.command import as_command, json_option
from packer_cli.cli.console import print_json, print_tables, say_next, shown_command
from packer_cli.cli.options import config_option, set_argument
from packer_cli.sizes import counted, format_bytes
from packer_cli.tables.table import cell, table_of

if TYPE_CHECKING:
    from packer_cli.commands.versions import Versions


@as_command()
@set_argument
@json_option("output/versions")
@config_option
def command(folder: str) -> None:
    """List the versions of a packed set, and what changed from one to the next.

    Each run that changes a set makes a new version and leaves the earlier ones as they are. Wherever a set is read,
    `OUT@3` is version 3, in commands and in the loader.

    Examples::

        hbpack versions OUT
        # The figures of an earlier one
        hbpack stats OUT@1
    """
    from packer_cli.commands.versions import versions

    print_versions(versions(folder))


def print_versions(found: Versions) -> None:
    """Print the versions of a set, a row each."""
    if print_json(found):
        return

    columns = {
        "version": lambda each: f"{each.number}{' *' if each.is_current else ''}",
        "time": lambda each: each.time[:16].replace("T", " "),
        "command": lambda each: each.command,
        "records": lambda each: f"{each.records:,}",
        "tokens": lambda each: f"{each.tokens:,}",
        "GPUs": lambda each: f"{each.num_gpus:,}",
        "size": lambda each: cell(each.num_bytes, format_bytes, "removed"),
        "changed": lambda each: "; ".join(each.changed) or "-",
    }
    print_tables(table_of(f"Versions of {found.output}", found.versions, columns, "* the current version"))
    names = [f"{found.output}@{each.number}" for each in found.versions if each.is_current]
    say_next(counted(len(found.versions), "version"), shown_command("hbpack", "stats", *(names or [found.output])))
