"""What the file of a plan keeps of its options: all that decided it, as numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationInfo, field_validator, model_validator

from packer_cli.config.defaults import default_of, defaults_of_trees
from packer_cli.config.fields import AutoGroupsConfig
from packer_cli.config.plan_options import PlanConfig, StorePlanConfig
from packer_cli.errors import ConfigError
from packer_cli.format.planned import SetsAside
from packer_cli.plan.core.groups import Group
from packer_cli.plan.strategies.protocol import Strategy
from packer_cli.plan.strategies.registry import STRATEGIES
from packer_cli.plugins import Registry

Decisions = dict[str, Any]
"""JSON of the options that decided a plan, by their names in `PlannedConfig`."""
RecordedModel = dict[str, Any]
"""JSON of a `packer_cli.cost.models.GpuModel` without its origin, as the release that planned wrote it."""
OF_VALIDATION = ("gpus", "mask", "cost", "overflow", "max_samples", "max_path_tokens", "seed", "validation")
"""Options of training that its validation set has, too; the others are at their defaults."""
_PREDICTED_FROM = {"strategy", "groups", "align", "packing", "cost", "cp_sharding", "lockstep"}
_PREDICTED_FROM |= AutoGroupsConfig.model_fields.keys()
"""Options on which what a plan predicts depends."""


class PlannedConfig(StorePlanConfig, SetsAside):
    """What decided a plan. Its groups are those that its strategy used, each with its own `align`."""

    strategy: str
    is_validation: bool = False
    """Whether the plan is of the samples that `validation` sets aside, rather than of the others."""
    group_costs: tuple[tuple[float, float, float], ...] | None = None
    """Of each group, the seconds of a replica, on one of its pipeline stages, per squared token, per token and per
    micro-batch; None unless the strategy predicts them. WLB-LLM's has those of each capacity that it chooses from."""
    attention_pieces: tuple[tuple[int, int, float], ...] | None = None
    """What `--cp-sharding auto` predicts with: queries, keys and seconds of the profile's pieces."""
    gpu_model: RecordedModel | None = None
    """What the seconds of steps are predicted with; None without a model of the GPUs, and of a validation set."""
    packages: dict[str, str] | None = None
    """The packages, with versions, of a strategy or a packing that is not hbpack's own."""

    def follows(self, training: PlannedConfig) -> bool:
        """Whether this is of the samples that training sets aside, planned as `validation_options` says."""
        longest = training.groups[-1]
        return (
            self.is_validation
            and all(getattr(self, name) == getattr(training, name) for name in OF_VALIDATION)
            and [(group.capacity, group.align) for group in self.groups] == [(longest.capacity, longest.align)]
        )

    @property
    def planner(self) -> Strategy:
        """The strategy. Raises ConfigError if its package is not installed."""
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

    def decisions(self) -> Decisions:
        """JSON values of all that decides a plan; what groups were chosen with does not."""
        left_out = {*AutoGroupsConfig.model_fields, *self.planner.ignores, "align"}
        return {**self.model_dump(mode="json", exclude=left_out), "groups": [*map(vars, self.groups)]}

    def as_text(self) -> dict[str, str]:
        """The options that the strategy uses, as the command line takes them; none that is None."""
        strategy = STRATEGIES.get(self.strategy)
        left_out = {*AutoGroupsConfig.model_fields, "align", *(strategy.ignores if strategy else ())}
        named = ((name, getattr(self, name)) for name in StorePlanConfig.model_fields if name not in left_out)
        found = {name: str(value) for name, value in named if value is not None}
        return {**found, "groups": ",".join(map(_group_text, self.groups))}

    def names_given(self) -> set[str]:
        """Options that are not at their strategy's default: a plan does not record what was given at its default."""
        usual = {name: default_of(field, self.strategy) for name, field in StorePlanConfig.model_fields.items()}
        if self.max_path_tokens is not None:
            usual |= defaults_of_trees(PlanConfig.model_fields, self.strategy)
        return {name for name, value in usual.items() if getattr(self, name) != value}

    def with_options(self, given: Mapping[str, Any]) -> StorePlanConfig:
        """The options of another plan: those given, and for the rest what this plan had.

        What was predicted stays, unless an option is given on which it depends.

        Raises:
            ConfigError: an option is wrong, or does not fit the others.
        """
        config = self.with_others(**given)
        if given.keys() & _PREDICTED_FROM or ("gpus" in given and self.planner.finds_layouts):
            return config
        return self.model_copy(update={name: getattr(config, name) for name in given})

    @field_validator("groups")
    @classmethod
    def _choose_groups(cls, groups: tuple[Group, ...], info: ValidationInfo) -> tuple[Group, ...]:
        return groups  # They were chosen.

    @model_validator(mode="after")
    def _check(self) -> PlannedConfig:
        return self  # They fitted each other when the plan was made.


def _group_text(group: Group) -> str:
    """The groups as `--groups` takes them, with what `--parallel` and `--align` add."""
    others = (f"{name}={value}" for name, value in list(vars(group).items())[3:] if value > 1)
    return " ".join([str(group), *others])
