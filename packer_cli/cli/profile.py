"""`hbpack profile`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from packer_cli.cli.command import as_command, json_option
from packer_cli.cli.console import print_json, print_line, print_tables, say_next, shown_command, wants_json
from packer_cli.cli.options import model_options, output_file_option
from packer_cli.commands.output_file import output_file
from packer_cli.config import validate
from packer_cli.config.profile_options import ProfileConfig
from packer_cli.cost.profile import Profile
from packer_cli.engine.progress import say
from packer_cli.errors import ConfigError, InputError, RunError
from packer_cli.files import write_text
from packer_cli.sizes import counted


@as_command()
@output_file_option(None, "Profile to write, such as profile.json.")
@model_options(ProfileConfig)
@json_option("profile")
def command(output: str, **values: Any) -> None:
    r"""Measure iteration times and peak memory of your model on the GPUs of this machine.

    Forward and backward of packed rows are measured for each length, SP degree and number of checkpointed layers, with
    random weights and no data, and a model of time and memory is fitted to them. Run it under torchrun to measure SP
    degrees above 1 with the processes' real all-to-alls, and weights that all GPUs share (FSDP). Needs torch.

    `hbpack groups`, `hbpack simulate` and `--cost profile` take the file as --profile.

    Examples::

        hbpack profile --model model --output profile.json
        # SP degrees up to 8, with the weights sharded over 8 GPUs
        torchrun --nproc-per-node 8 -m packer_cli profile --model model \
            --output profile.json
    """
    path = output_file(output, "profile.json", _is_profile)
    config = validate(ProfileConfig, values)
    if len(config.lengths) < 2:
        raise ConfigError("--lengths: one length does not tell how memory grows; add another, such as its double")
    try:
        from packer_cli.measure.run import measure_profile
    except ImportError as error:
        raise ConfigError(str(error)) from None
    is_first = os.environ.get("RANK", "0") == "0"
    profile = measure_profile(config, say if is_first else lambda text: None)
    if is_first:
        from packer_cli.tables.groups import profile_tables

        try:
            write_text(path, profile.model_dump_json(indent=2) + "\n")
        finally:
            # Print it even if the disk is full: measuring again takes minutes.
            if not print_json(profile):
                print_tables(*profile_tables(profile))
        if not wants_json():
            print_line(f"wrote {output}")
        _require_fits(output, profile)
        if not wants_json():
            what = f"{output} holds {counted(len(profile.iterations), 'measured row')}"
            say_next(
                what,
                f"{shown_command('hbpack', 'groups', 'LENGTHS', '--profile', output)} --gpus {config.gpus or 'N'}",
            )


def _is_profile(path: Path) -> bool:
    from packer_cli.config.gpu_model import read_profile

    try:
        read_profile(path)
    except InputError:
        return False
    return True


def _require_fits(output: str, profile: Profile) -> None:
    """Raise now the error that a command given this file would raise. The file stays, since its rows are useful."""
    from packer_cli.cost.fit_profile import measured_model

    try:
        measured_model(profile)
    except ConfigError as error:
        # HBP's algorithm 1 uses the rows directly.
        has_rows = any(row.seconds is not None for row in profile.iterations)
        users = "only --group-algorithm hbp can use it" if has_rows else "no command can use it yet"
        raise RunError(f"nothing was fitted to {output!r}, so {users}: {error}") from None
