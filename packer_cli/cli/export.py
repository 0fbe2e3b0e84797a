"""`hbpack export`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from packer_cli.cli.command import Text, as_command, json_option, option
from packer_cli.cli.console import print_json, say_next, say_share
from packer_cli.cli.options import job_options, model_options, output_option, set_argument
from packer_cli.config.set_options import ExportConfig
from packer_cli.export.formats import FORMATS, load_format
from packer_cli.sizes import counted, format_bytes

if TYPE_CHECKING:
    from packer_cli.export.listing import ExportListing


@as_command()
@set_argument
@option(
    "--to",
    type=Text(FORMATS.names),
    metavar="FORMAT",
    help=f"Format to write: {', '.join(FORMATS)}.",
)
@output_option("Folder to write: new, empty, or of the same export, interrupted.", required=False)
@option("--groups", metavar="GROUPS", show_default="all")
@model_options(ExportConfig)
@option("--push-to-hub", metavar="NAME")
@option("--private", is_flag=True)
@option("--license", metavar="ID")
@json_option("output/export")
@job_options
def command(folder: str, to: str | None, output: str | None, **values: Any) -> None:
    """Write a packed data set in another trainer's format, or push it to the Hugging Face Hub.

    OUT is the output of `hbpack pack` or `hbpack write`. One row, or document, is one pack; token ids, loss masks and
    sample borders are kept. docs/export.md says what each format holds, and what it has no place for.

    An interrupted run continues where it stopped.

    Args:
        groups: Groups to export, such as 16k or 16k:1,128k:8, or names of their folders.
        push_to_hub: Data set on the Hugging Face Hub that gets the export, or the packed set without --to: USER/NAME.
        private: Make that data set private; a public one is refused.
        license: Licence that its card names, such as apache-2.0.

    Examples::

        hbpack export OUT --to trl --output TRL
        # One group, for Megatron-LM
        hbpack export OUT --to megatron --groups 1k --output MEGATRON
        # The packed set itself, on the Hugging Face Hub
        hbpack export OUT --push-to-hub USER/NAME
    """
    from packer_cli.commands.export import export

    done = export(folder, to=to, output=output, **values)
    if print_json(done):
        return
    if to is None or output is None:
        say_next(f"Pushed {folder} to {done.pushed_to}", f'train with train_dataset="hf://datasets/{done.pushed_to}"')
    elif done.listing is None:
        say_share(output)
    else:
        _say_exported(output, to, done.pushed_to, done.listing)


def _say_exported(output: str, format_name: str, pushed_to: str | None, listing: ExportListing) -> None:
    """Print the contents of an export, and the way to use it."""
    num_bytes = sum(file["num_bytes"] for file in listing["files"])
    what = f"{counted(listing['num_rows'], 'pack')} in the format of {format_name}, {format_bytes(num_bytes)}"
    format = load_format(format_name)
    where = f"docs/export.md, {format_name}" if FORMATS.package(format_name) is None else "its package says how"
    steps = [f"{format.usage_of(output, listing) or 'load it in your trainer'} ({where})"]
    if pushed_to and format.hub_files:
        steps.insert(0, f'load_dataset("{pushed_to}")')
    say_next(f"{output} holds {what}", *steps)
