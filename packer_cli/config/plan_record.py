"""Options that the file of a plan keeps: everything that decided the plan, as numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationInfo, field_validator, model_validator

from packer_cli.config.fields import AutoGroupsConfig, default_of, validate
from packer_cli.config.plan_options import StorePlanConfig
from packer_cli.errors import ConfigError
from packer_cli.format.tokens import SetsAside
from packer_cli.plan.core.groups import Group
from packer_cli.plan.strategies.protocol import Strategy
from packer_cli.plan.strategies.registry import STRATEGIES
from packer_cli.plugins import Registry

RecordedModel = dict[str, Any]
"""JSON of a `packer_cli.cost.predict.GpuModel` without its origin, as the release that planned wrote it."""
_OF_VALIDATION = ("gpus", "mask", "cost", "overflow", "max_samples", "max_path_tokens", "seed", "validation", "dedup")
"""Options of training that its validation set has, too; the others are at their defaults."""
_PREDICTED_FROM = {"strategy", "groups", "align", "packing", "cost", "cp_sharding", "lockstep"}
_PREDICTED_FROM |= AutoGroupsConfig.model_fields.keys()
"""Options on which the predictions of a plan depend."""


class PlannedConfig(StorePlanConfig, SetsAside):
    """Options that decided a plan. Its groups are the ones that its strategy used, each with its own `align`."""

    strategy: str
    is_validation: bool = False
    """Whether the plan is of the samples that `validation` sets aside, rather than of the others."""
    group_costs: tuple[tuple[float, float, float], ...] | None = None
    """Seconds of a replica of each group, on one of its pipeline stages, per squared token, per token and per
    micro-batch; None unless the strategy predicts them. WLB-LLM's has seconds of each capacity that it chooses."""
    attention_pieces: tuple[tuple[int, int, float], ...] | None = None
    """Queries, keys and seconds of the profile's pieces, with which `--cp-sharding auto` predicts."""
    gpu_model: RecordedModel | None = None
    """Model that predicts the seconds of steps; None without a model of the GPUs, and for a validation set."""
    packages: dict[str, str] | None = None
    """The packages, with versions, of a strategy or a packing that is not hbpack's own."""

    def of_validation(self) -> StorePlanConfig:
        """Return the options of the plan of the samples that this one sets aside: one epoch, each row on one GPU.

        The capacity is that of the longest group, so that no sample is cut or dropped that training keeps. One GPU
        evaluates rows that several share while they train: that keeps no gradients, and activations of one layer.
        """
        capacity, align = self.groups[-1].capacity, self.groups[-1].align
        values = {name: getattr(self, name) for name in _OF_VALIDATION}
        return validate(StorePlanConfig, {**values, "groups": [Group(capacity=capacity)], "align": align})

    def follows(self, training: PlannedConfig) -> bool:
        """Whether this plan is of the samples that training sets aside."""
        wanted, names = training.of_validation(), (*_OF_VALIDATION, "groups")
        return self.is_validation and all(getattr(self, name) == getattr(wanted, name) for name in names)

    @property
    def planner(self) -> Strategy:
        """The strategy; reading it raises ConfigError if its package is not installed."""
        if self.packages:
            self.require_package("strategy", STRATEGIES)
        return super().planner

    def require_package(self, option: str, registry: Registry[Any]) -> None:
        """Raise ConfigError if the package of this option's value is not installed."""
        package, name = (self.packages or {}).get(option), getattr(self, option).partition(":")[0]
        if package is not None and name not in registry:
            raise ConfigError(
                f"--{option} {name}, by which this was planned, is of {package}, which is not installed here; install "
                "that package"
            )

    def as_text(self) -> dict[str, str]:
        """Return the options that the strategy uses, as the command line takes them; none that is None."""
        strategy = STRATEGIES.get(self.strategy)
        left_out = {*AutoGroupsConfig.model_fields, "align", *(strategy.ignores if strategy else ())}
        named = ((name, getattr(self, name)) for name in StorePlanConfig.model_fields if name not in left_out)
        found = {name: str(value) for name, value in named if value is not None}
        return {**found, "groups": ",".join(map(_group_text, self.groups))}

    def names_given(self) -> set[str]:
        """Return the options that are not at their default: a plan does not record options given at their default."""
        fields, of_trees = StorePlanConfig.model_fields, self.max_path_tokens is not None
        usual = {name: default_of(field, self.strategy, of_trees=of_trees) for name, field in fields.items()}
        return {name for name, value in usual.items() if getattr(self, name) != value}

    def with_options(self, options: Mapping[str, Any]) -> tuple[StorePlanConfig, set[str]]:
        """Make the options of another plan: the given ones, and this plan's for the rest; return the given names, too.

        Predictions stay, unless an option is given on which they depend.

        Args:
            options: by name, maybe with others; None means that an option was not given.

        Raises:
            ConfigError: an option is wrong, or does not fit the others.
        """
        given = {name: options[name] for name in StorePlanConfig.model_fields if options.get(name) is not None}
        config = self.with_others(**given)
        if given.keys() & _PREDICTED_FROM or ("gpus" in given and self.planner.finds_layouts):
            return config, {*given}
        return self.model_copy(update={name: getattr(config, name) for name in given}), {*given}

    @field_validator("groups")
    @classmethod
    def _choose_groups(cls, groups: tuple[Group, ...], info: ValidationInfo) -> tuple[Group, ...]:
        return groups  # They were chosen.

    @model_validator(mode="after")
    def _check(self) -> PlannedConfig:
        return self  # They fitted each other when the plan was made.


def _group_text(group: Group) -> str:
    """Write a group as `--groups` takes it, with the degrees and multiples of `--parallel` and `--align`."""
    others = (f"{name}={value}" for name, value in list(vars(group).items())[3:] if value > 1)
    return " ".join([str(group), *others])
