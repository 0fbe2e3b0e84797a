"""`hbpack show`."""

from __future__ import annotations

import os
import shutil
import sys
from typing import Any

import click

from packer_cli.cli.command import Choice, as_command, json_option, option
from packer_cli.cli.console import print_json, print_line, say_next, shown_command, wants_json
from packer_cli.cli.options import model_options, set_argument
from packer_cli.config import validate
from packer_cli.config.models import AppendConfig
from packer_cli.config.set_options import ShowConfig
from packer_cli.sizes import counted


@as_command()
@set_argument
@model_options(ShowConfig)
@model_options(AppendConfig, ["tokenizer"])
@option("--max-chars", type=click.IntRange(min=0), default=2000, show_default=True, metavar="N")
@option("--full", is_flag=True)
@option("--tokens", "by_token", is_flag=True)
@option("--color", type=Choice(["auto", "always", "never"]), default="auto", show_default=True)
@json_option("output/show")
def command(
    folder: str,
    tokenizer: str | None,
    max_chars: int,
    full: bool,
    by_token: bool,
    color: str,
    **values: Any,
) -> None:
    """Show a rank's packs as text: samples, loss masks, and the records they come from.

    OUT is the output of `hbpack pack` or `hbpack write`, or its URL in remote storage. The samples of a pack follow
    one another; the branches of an item (a preference pair, a group, the turns of a conversation) are drawn as a tree.
    Tokens with a loss are green, the others dim; without colors they are labelled trained and masked. Of a step with
    several iterations, the first is shown and the others are listed.

    Args:
        max_chars: Shorten longer samples in the middle to about this many characters.
        full: Shorten nothing.
        by_token: One line for each token, with its place and id.
        color: Colors; `auto` where stdout is a terminal and NO_COLOR is not set.

    Examples::

        hbpack show OUT
        # The third step of GPU 3, and one sample token by token
        hbpack show OUT --step 2 --rank 3
        hbpack show OUT --sample 7 --tokens
    """
    config = validate(ShowConfig, values)
    from packer_cli.format.versions import set_at
    from packer_cli.remote.path import as_path
    from packer_cli.shards.manifest import read_manifest
    from packer_cli.show.decode import decode_ids, load_decoder
    from packer_cli.show.lines import view_lines
    from packer_cli.show.text import Style
    from packer_cli.show.view import look, with_runs

    root = set_at(as_path(folder))
    manifest = read_manifest(root)
    views = look(root, manifest, config)
    decode = load_decoder(manifest, tokenizer)
    if wants_json():
        print_json([with_runs(view, decode) for view in views])
        return
    style = Style(
        is_colored=_has_colors(color),
        max_chars=None if full else max_chars,
        is_by_token=by_token,
        width=min(shutil.get_terminal_size().columns, 100) if sys.stdout.isatty() else 80,
    )
    for number, view in enumerate(views):
        if number:
            print_line()
        for line in view_lines(view, decode or decode_ids, style):
            click.echo(line, color=style.is_colored)
    print_line()
    place = views[-1].shown
    what = f"{folder}: {counted(len(views), 'pack')} shown"
    if place is None or place.row.iteration + 1 >= place.num_iterations:
        say_next(what, shown_command("hbpack", "stats", folder))
    else:
        words = ("--rank", place.rank, "--iteration", place.row.iteration + 1)
        say_next(what, shown_command("hbpack", "show", folder, *words))


def _has_colors(color: str) -> bool:
    if color != "auto":
        return color == "always"
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
