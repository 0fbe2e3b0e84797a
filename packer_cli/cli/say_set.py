"""The end of the commands that write shards: a line on the set, and the next steps."""

from __future__ import annotations

from packer_cli.cli.console import say_next, shown_command, shown_options
from packer_cli.commands.write import describe_set
from packer_cli.config import GpuConfig
from packer_cli.format.constants import VALIDATION
from packer_cli.format.manifest import Manifest
from packer_cli.remote.path import as_path


def say_share(output: str) -> None:
    """Print the line of a task whose job array is not done, with the command that shows what is left."""
    say_next(f"Wrote this task's share of {output}", shown_command("hbpack", "status", output))


_FORMAT = {"sample": "", "item": ', format="tree"'}
"""Argument with which a set is read, by its unit."""


def say_set(output: str, manifest: Manifest, config: GpuConfig) -> None:
    """Print the contents of a set, and the next steps.

    Args:
        config: model and GPU with which `hbpack report` predicts times; a set does not keep them.
    """
    report = shown_command("hbpack", "report", output, *shown_options(config, GpuConfig))
    arguments = f"{manifest.num_gpus}{_FORMAT[manifest.unit]}"
    train = f'train with packer_cli.loader.PackedDataset("{output}", rank, {arguments})'
    if manifest.unit == "sample" and all(group.tp_size * group.pp_size == 1 for group in manifest.groups):
        train += f', or with packed(Trainer)(model, args, train_dataset="{output}") as in docs/train.md'
    steps = [shown_command("hbpack", "show", output), report, train]
    if manifest.planned.sets_aside:
        steps.append(f'evaluate with PackedDataset("{as_path(output) / VALIDATION}", rank, {arguments})')
    say_next(f"{output} holds {describe_set(manifest)}", *steps)
