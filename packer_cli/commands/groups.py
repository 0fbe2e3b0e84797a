"""The groups stage: it finds the groups, or layouts, that make an epoch of samples shortest, and keeps no files."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, Unpack

from packer_cli.commands.arguments import Inputs, corpus_of, takes
from packer_cli.commands.plan import sizes_for
from packer_cli.commands.samples import read_samples
from packer_cli.config import AUTO, AutoGroupsConfig, PlanConfig, TokenizeConfig, WorkersConfig, option_name, validate
from packer_cli.config.fields import default_of
from packer_cli.config.gpu_model import load_models
from packer_cli.config.resolve import resolve
from packer_cli.errors import ConfigError, RunError
from packer_cli.groups.auto import FoundGroups, bounded, choose, found_groups
from packer_cli.plan.core.groups import Group, Overflow
from packer_cli.plan.strategies.protocol import LayoutChoice, Strategy
from packer_cli.plan.strategies.registry import DEFAULT

if TYPE_CHECKING:
    from packer_cli.commands.option_types import CallOfGroups
    from packer_cli.plan.packing import PackingAlgorithm


_OF_LAYOUTS: tuple[str, ...] = ("strategy", "packing", "global_tokens")
"""Options that only layouts use."""


@takes(AutoGroupsConfig, TokenizeConfig, WorkersConfig)
def groups(
    lengths: Inputs,
    *,
    gpus: int | None = None,
    strategy: str | Strategy = DEFAULT,
    packing: str | PackingAlgorithm | None = None,
    overflow: Overflow = "split",
    global_tokens: int | str | None = None,
    seed: int = 0,
    **options: Unpack[CallOfGroups],
) -> FoundGroups | LayoutChoice:
    """Find the length groups with the shortest epoch for lengths, a model and GPUs, as `hbpack groups` does.

    Nothing is kept. The `groups` of the result are those that `plan` and `pack` take.

    Args:
        lengths: as `plan` takes them; or, with `tokenizer`, a corpus as `pack` takes it.
        gpus: GPUs that train; required.
        strategy: one that finds layouts of pipelines instead, such as `"hydraulis"`; others find the same groups.
        packing: with that strategy, its way to find them.
        overflow: treatment of samples longer than `max_length`.
        global_tokens: with that strategy, tokens of an optimizer step.
        seed: seed of the plans that are tried.
        options: `model` and `gpu`, or `profile`, are required; `group_algorithm`, by default `"search"`; `max_groups`,
            `max_length` and `parallel`; and those of a corpus, and `workers`.

    Returns:
        The groups, with what they were chosen from; or the layouts.

    Raises:
        HbpackError: an option or a length is wrong, or there is nothing to plan.
    """
    of_plan = {"strategy": strategy, "packing": packing, "overflow": overflow, "global_tokens": global_tokens}
    values = {"gpus": gpus, "seed": seed, **of_plan, **options}
    given = {name: value for name, value in values.items() if value is not None}
    return find_groups(lengths, {"group_algorithm": "search", **given}, given)[1]


def find_groups(
    inputs: Inputs, options: Mapping[str, Any], given: Collection[str]
) -> tuple[PlanConfig, FoundGroups | LayoutChoice]:
    """Choose groups for the samples of an epoch; or layouts, with a strategy that finds them.

    Args:
        given: options that are refused if they have no effect.

    Returns:
        The options that were used, and what was found.
    """
    config = validate(PlanConfig, {**options, "groups": AUTO})
    corpus, workers = corpus_of(inputs, options), validate(WorkersConfig, options).workers
    unused, why = _OF_LAYOUTS, ", which finds the same groups for all strategies but hydraulis"
    if config.planner.finds_layouts:
        why = f" --strategy {config.strategy}, which finds pipelines and layouts instead of groups"
        unused = ("group_algorithm", "max_groups")
    for name in unused:
        if name in given and getattr(config, name) != default_of(PlanConfig.model_fields[name]):
            raise ConfigError(f"{option_name(name)} has no effect on hbpack groups{why}; leave it out")
    if not config.planner.finds_layouts:
        config = config.model_copy(update={name: default_of(PlanConfig.model_fields[name]) for name in _OF_LAYOUTS})
    load_models(config, "hbpack groups")  # Report wrong options before the long work.
    samples, find_layouts = read_samples(inputs, corpus, workers), config.planner.choose_layouts
    of_unit = config.for_unit(samples.unit)
    lengths = sizes_for(of_unit, samples)
    if find_layouts is None:
        return config, found_groups(*choose(of_unit, lengths))
    lengths = bounded(of_unit, lengths)
    if not len(lengths):
        raise RunError("there is nothing to plan: no sample is left; add data, or raise --max-length")
    longest = Group(capacity=config.max_length or int(lengths.max()))
    return config, find_layouts(lengths, resolve(of_unit.with_groups((longest,))).request)
