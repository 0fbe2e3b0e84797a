"""Plan options that change nothing: one mechanism tells a user who gives one of them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Set
from typing import Any

from packer_cli.config.fields import AutoGroupsConfig, GpuConfig
from packer_cli.config.messages import option_name
from packer_cli.config.plan_options import AUTO, PlanConfig
from packer_cli.errors import ConfigError

OF_AUTO = AutoGroupsConfig.model_fields.keys() - GpuConfig.model_fields.keys() - {"parallel"}


def of_auto(groups: Any) -> Set[str]:
    """Return the options that have no effect beside these groups, since the options choose groups."""
    return frozenset() if groups in (AUTO, [AUTO]) else OF_AUTO


def refuse_without_effect(config: PlanConfig, given: Collection[str] | None = None) -> None:
    """Raise ConfigError for an option that was given and changes nothing.

    Args:
        given: names of fields; None for the fields that the options say were given. A plan that was read names all.
    """
    found = dict(config.planner.idle_parts(config)) | without_effect(config)
    order, plus, _ = config.balance.partition("+")
    has_one_replica = not config.is_auto and all(group.num_dp_ranks(config.gpus) == 1 for group in config.groups)
    if has_one_replica and config.balance.endswith("refine"):
        order = order if plus else "sort"
        why = f"refine exchanges samples between replicas, and there is one; give --balance {order}"
        found.setdefault("balance", f"{config.balance}: {why}")
    for option in sorted(found.keys() & set(config.model_fields_set if given is None else given)):
        raise ConfigError(f"{option_name(option)} {found[option]}")


def require_use(config: PlanConfig, rows: Iterable[PlanConfig]) -> None:
    """Raise ConfigError for an option that was given and changes none of the plans that are compared.

    Args:
        rows: the options of each plan.
    """
    found = [without_effect(row, was_auto=config.is_auto) for row in rows]
    for option in sorted(config.model_fields_set.intersection(*found)):
        raise ConfigError(f"{option_name(option)} {found[0][option]}")


def without_effect(config: PlanConfig, *, was_auto: bool = False) -> dict[str, str]:
    """Find the options that change nothing, given or not, each with the words of a message after its name.

    Args:
        was_auto: whether `auto` chose the groups.
    """
    strategy = config.planner
    own_way = f"has no effect on --strategy {config.strategy}, which packs in its own way; leave it out"
    found = dict.fromkeys(strategy.ignores, own_way)
    has_cp = config.layout.cp > 1 or any(group.cp_size > 1 for group in config.groups)
    if not has_cp and not strategy.finds_layouts:
        found["cp_sharding"] = "has no effect without context parallelism; give --parallel cp=N, or leave it out"
    if not config.is_auto:
        if not was_auto:
            found |= dict.fromkeys(OF_AUTO, "has no effect with named --groups; give --groups auto, or leave it out")
        if len(config.groups) == 1:
            why = "has no effect with one length group: there are no shorter ones to fill its packs; leave it out"
            found.setdefault("fill", why)
    elif "a stream" in strategy.needs:
        why = f"has no effect on --strategy {config.strategy}, whose one group is the context window; leave it out"
        found |= dict.fromkeys(OF_AUTO - {"max_length"}, why)
    return found | dict(strategy.without_effect(config))
