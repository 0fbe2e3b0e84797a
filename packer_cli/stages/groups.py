"""The groups stage: find the groups that make an epoch of these samples shortest. It keeps no files."""

from __future__ import annotations

from collections.abc import Sequence

from packer_cli.config import PlanConfig, TokenizeConfig
from packer_cli.format.choice import GroupChoice
from packer_cli.groups.auto import choose, load_models
from packer_cli.groups.choice import Choice
from packer_cli.stages.samples import read_samples


def run_groups(
    inputs: Sequence[str], corpus: TokenizeConfig | None, config: PlanConfig, workers: int | None
) -> tuple[Choice, GroupChoice]:
    """Choose groups for the samples of an epoch. Returns the choice, and what a plan would record about it."""
    load_models(config, config.gpus, "hbpack groups")  # Report wrong options before the long work.
    samples = read_samples(inputs, corpus, workers)
    return choose(config, samples.epoch_lengths(config.seed), config.gpus, config.overflow, "hbpack groups")
