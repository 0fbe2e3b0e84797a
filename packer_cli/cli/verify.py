"""`hbpack verify`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from packer_cli.cli.command import as_command, json_option, option
from packer_cli.cli.console import print_json, print_line, say_next, shown_command
from packer_cli.cli.options import config_option, set_argument, wait_option, workers_option
from packer_cli.engine.progress import Stopwatch
from packer_cli.errors import FormatError
from packer_cli.sizes import counted

if TYPE_CHECKING:
    from packer_cli.verify.verifier import Verified


@as_command()
@set_argument
@option("--fast", is_flag=True)
@option("--repair", is_flag=True)
@json_option("output/verify")
@workers_option
@wait_option
@config_option
def command(folder: str, **values: Any) -> None:
    """Check a packed data set for damage.

    OUT is the output of `hbpack pack` or `hbpack write`. Every file must have its checksum and belong to this set; the
    plan must keep its rules and hold every sample once; the ranks must read what the plan says, each pack once over
    all of them; and the packs must hold the plan's samples, with the tokens of the token store.

    Every damaged file is listed, with the command that repairs it. Exit codes: 0 sound, or repaired; 1 damaged; 2
    wrong usage.

    Args:
        fast: Leave out the comparison of tokens with the token store.
        repair: Rewrite damaged shards and rank manifests from the plan and the token store, and check again.

    Examples::

        hbpack verify OUT
        # Rewrite what is damaged
        hbpack verify OUT --repair
    """
    from packer_cli.commands.verify import verify

    watch = Stopwatch()
    report = verify(folder, **values)
    if not print_json(report):
        _print(report, folder, watch)
    if not report.sound:
        commands = " / ".join(dict.fromkeys(damage.repair for damage in report.damaged))
        raise FormatError(f"{folder!r} is damaged in {counted(len(report.damaged), 'place')}; run {commands}")


def _print(report: Verified, folder: str, watch: object) -> None:
    for damage in report.repaired:
        print_line(f"repaired: {damage.file}: {damage.what}")
    for damage in report.damaged:
        print_line(f"{damage.file}: {damage.what}; run {damage.repair}")
    for text in report.not_checked:
        print_line(f"not checked: {text}")
    nouns = ((name.replace("_", " ").removesuffix("s"), number) for name, number in report.checked.items())
    checked = ", ".join(counted(number, noun) for noun, number in nouns)
    if report.sound:
        say_next(f"{folder} is sound: {checked} ({watch})", shown_command("hbpack", "stats", folder))
