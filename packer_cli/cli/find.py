"""`hbpack find`."""

from __future__ import annotations

import click

from packer_cli.cli.command import Text, as_command, json_option, option
from packer_cli.cli.console import print_json, print_tables, say_next, shown_command
from packer_cli.cli.options import set_argument
from packer_cli.sizes import counted


@as_command()
@set_argument
@click.argument("records", metavar="FILE:LINE...", nargs=-1, type=Text())
@option("--id", "ids", multiple=True, metavar="ID", type=Text())
@json_option("output/find")
def command(folder: str, records: tuple[str, ...], ids: tuple[str, ...]) -> None:
    """Find where records went: packs, shards, and the steps and ranks that train on them.

    OUT is the output of `hbpack pack` or `hbpack plan` that keeps its token store. FILE is a file of its inputs, by as
    many of the folders above it as tell it from others, and LINE a line, or a row of a table, from 1. Epochs are those
    that were written; later ones repeat the steps of a written one in another order. `hbpack show` goes the other way.

    Args:
        ids: Record with this value in the first of the --keep-columns; you may give several.

    Examples::

        hbpack find OUT chats.jsonl:17
        hbpack find OUT chats.jsonl:17 chats.jsonl:18 --json
    """
    from packer_cli.commands.find import find, places_table

    found = find(folder, records, ids=ids)
    if print_json(found):
        return
    print_tables(places_table(found))
    words = next((("--sample", place.sample) for place in found.places if place.pack is not None), ())
    say_next(counted(len(records) + len(ids), "record"), shown_command("hbpack", "show", folder, *words))
