"""The groups stage: which groups make an epoch of these samples shortest. It leaves nothing behind."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from packer_cli.config import PlanConfig, TokenizeConfig
from packer_cli.engine.progress import say

if TYPE_CHECKING:
    from packer_cli.groups.choice import Choice
    from packer_cli.plan.samples import Samples


def run_groups(
    inputs: Sequence[str], corpus: TokenizeConfig | None, config: PlanConfig, workers: int | None
) -> tuple[Choice, dict[str, Any]]:
    """Choose groups for the samples of an epoch: the choice, and what a plan would record of it."""
    from packer_cli.groups.auto import choose, load_models
    from packer_cli.stages.samples import read_samples

    load_models(config, config.gpus, "hbpack groups")  # What is wrong with the options is said before the long work.
    samples = read_samples(inputs, corpus, workers)
    return choose(config, samples.epoch_lengths(config.seed), config.gpus, config.overflow, "hbpack groups")


def with_known_groups(config: PlanConfig, samples: Callable[[], Samples]) -> tuple[PlanConfig, dict[str, Any] | None]:
    """The options with groups in the place of `auto`, and what is recorded of the choice."""
    if not config.is_auto:
        return config, None  # Their samples need not be read.
    from packer_cli.groups.auto import describe, resolve

    config, choice = resolve(config, samples().epoch_lengths(config.seed))
    if choice is not None:
        say(describe(choice))
    return config, choice
