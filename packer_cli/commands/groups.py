"""The groups stage: it finds the groups, or layouts, that make an epoch of samples shortest, and keeps no files."""

from __future__ import annotations

from collections.abc import Sequence

from packer_cli.commands.plan_store import sizes_for
from packer_cli.commands.samples import read_samples
from packer_cli.config import PlanConfig, TokenizeConfig
from packer_cli.config.gpu_model import load_models
from packer_cli.config.resolve import resolve
from packer_cli.errors import RunError
from packer_cli.groups.auto import FoundGroups, bounded, choose, found_groups
from packer_cli.plan.core.groups import Group
from packer_cli.plan.strategies.protocol import LayoutChoice


def run_groups(
    inputs: Sequence[str], corpus: TokenizeConfig | None, config: PlanConfig, workers: int | None
) -> FoundGroups | LayoutChoice:
    """Choose groups for the samples of an epoch; or layouts, with a strategy that finds them."""
    load_models(config, "hbpack groups")  # Report wrong options before the long work.
    samples, find_layouts = read_samples(inputs, corpus, workers), config.planner.choose_layouts
    config = config.for_unit(samples.unit)
    lengths = sizes_for(config, samples)
    if find_layouts is None:
        return found_groups(*choose(config, lengths))
    lengths = bounded(config, lengths)
    if not len(lengths):
        raise RunError("there is nothing to plan: no sample is left; add data, or raise --max-length")
    longest = Group(capacity=config.max_length or int(lengths.max()))
    return find_layouts(lengths, resolve(config.with_groups((longest,))).request)
