"""`hbpack doctor`."""

from __future__ import annotations

import shutil
import textwrap
from functools import partial
from typing import TYPE_CHECKING

from packer_cli.cli.command import LocalPath, as_command, json_option, option
from packer_cli.cli.console import print_json, print_line, say_next
from packer_cli.errors import RunError
from packer_cli.sizes import counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from packer_cli.commands.doctor import Check


@as_command()
@option("--output", "-o", type=LocalPath(), default=".", show_default=True, metavar="FOLDER")
@json_option("output/doctor")
def command(output: str) -> None:
    """Check this installation and machine, and say how to fix what is missing.

    Looks at hbpack's libraries and extras, the solver, cores, memory, disk, shared memory, open files, the cache of
    compiled kernels, and the GPUs that torch sees. It reads no data and writes nothing.

    Exit codes: 0 nothing is broken, 1 something is, 2 wrong usage.

    Args:
        output: Folder whose disk to check.

    Examples::

        hbpack doctor
        # The disk of a folder that will be written to, for a script
        hbpack doctor --output OUT --json
    """
    from packer_cli.commands.doctor import doctor

    checkup = doctor(output)
    is_text = not print_json(checkup)
    if is_text:
        _print(checkup.checks)
    if checkup.broken:
        names = ", ".join(check.name for check in checkup.broken)
        raise RunError(f"{counted(len(checkup.broken), 'thing')} broken ({names}); the list says what to do")
    if is_text:
        print_line()
        say_next("Nothing is broken", "hbpack init DATA... --tokenizer PATH")


def _print(checks: Sequence[Check]) -> None:
    width = min(shutil.get_terminal_size().columns, 100)
    room = max(len(check.name) for check in checks)

    wrapped = partial(
        textwrap.wrap, width=width, subsequent_indent=" " * 4, break_long_words=False, break_on_hyphens=False
    )
    for subject in dict.fromkeys(check.subject for check in checks):
        print_line(f"{subject}:")
        for check in (check for check in checks if check.subject == subject):
            mark = "" if check.state == "ok" else f"{check.state}: "
            lines = wrapped(f"{mark}{check.value}", initial_indent=f"  {check.name.ljust(room)}  ")
            for line in (*lines, *wrapped(check.remedy, initial_indent=" " * 4)):
                print_line(line)
