"""The plans of which a row of a comparison is the best: its strategy on every layout that holds and can be run."""

from __future__ import annotations

from dataclasses import replace

from packer_cli.config import PlanConfig
from packer_cli.config.fields import ABILITIES, asked_of_trainer, default_of
from packer_cli.config.groups import as_named, used_groups, write_parallel
from packer_cli.config.resolve import Resolved, resolve
from packer_cli.cost.models import GpuModel
from packer_cli.errors import ConfigError
from packer_cli.format.layout import ONE_GPU
from packer_cli.groups.settings import ways
from packer_cli.plan.core.groups import Group
from packer_cli.simulate.epoch import choose_layers


def candidates(own: Resolved, model: GpuModel) -> tuple[Resolved, ...]:
    """List a row's plan as the options have it, if memory holds it, and on other layouts; at least one.

    A strategy that makes its groups of the longest gets that at every degree; one that takes all groups as they are
    keeps them. Where the trainer's layouts hold nothing, those of any trainer are tried.

    Args:
        own: with known groups.
        model: with weights gathered in every micro-batch.
    """
    if own.request.strategy.finds_layouts:
        return (own,)
    able = own.given.abilities | asked_of_trainer(own.request)
    for allowed in (able, frozenset(ABILITIES)):
        given = own.given.model_copy(update={"trainer": ",".join(sorted(allowed))})
        others = _on_layouts(given, model)
        found = {layout_key(each): each for each in others if holds(each, model)}
        if holds(own, model):
            found = {layout_key(own): own} | found
        if found:
            return tuple(found.values())
    return (own,)


def holds(plan: Resolved, model: GpuModel) -> bool:
    """Whether a full row of each group fits in memory, with as many layers checkpointed as the group says or needs."""
    memory = model.of_lockstep(plan.request.lockstep).memory
    return all(choose_layers(group, memory).fits for group in plan.request.groups)


def groups_and_degrees(plan: Resolved) -> dict[str, str]:
    """Return `groups` of a plan, and unusual `parallel` and `lockstep`, as options take them."""
    config, strategy, groups = plan.config, plan.request.strategy, plan.config.groups
    longest = as_named(groups[-1])
    if strategy.finds_layouts:
        groups = used_groups(plan.given.groups, strategy)
    elif strategy.groups([longest]) == groups:
        groups = (longest,)
    found = {"groups": ",".join(map(str, groups))}
    kinds = {group.layout._replace(sp=1) for group in groups}
    if len(kinds) == 1 and kinds != {ONE_GPU}:
        found["parallel"] = write_parallel(kinds.pop())
    if config.lockstep != default_of(PlanConfig.model_fields["lockstep"], config.strategy):
        found["lockstep"] = config.lockstep
    return found


def _on_layouts(given: PlanConfig, model: GpuModel) -> list[Resolved]:
    strategy, longest = given.planner, given.groups[-1]
    takes_all = len(given.groups) > 1 and strategy.groups(given.groups) == given.groups and not strategy.mixes_layouts
    found = []
    for way in ways(given, model):
        config = given.model_copy(update={"lockstep": way.lockstep})
        sets = [Group(capacity=longest.capacity, vpp_size=each.vpp, **each.sizes) for each in way.layouts]
        for groups in [given.groups] if takes_all else [(group,) for group in sets]:
            try:
                found.append(resolve(config.with_groups(groups)))
            except (ConfigError, ValueError):  # The strategy cannot plan so.
                continue
    return found


def layout_key(plan: Resolved) -> tuple[object, ...]:
    """Return a value that is equal for plans whose replicas run in the same way."""
    groups = (replace(group, checkpoint_layers=0) for group in plan.request.groups)
    return *groups, plan.request.lockstep
