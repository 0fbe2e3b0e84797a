"""The options of one plan, as its file and its manifest hold them: numbers stand for what predicts them."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationInfo, field_validator, model_validator

from packer_cli.config.auto_groups import AutoGroupsConfig
from packer_cli.config.defaults import default_of
from packer_cli.config.groups import used_groups
from packer_cli.config.messages import validate
from packer_cli.config.plan_options import PlanConfig
from packer_cli.errors import ConfigError
from packer_cli.plan.core.groups import Group
from packer_cli.plan.strategies.protocol import Strategy
from packer_cli.plan.strategies.registry import STRATEGIES
from packer_cli.plugins import Registry


class PlannedConfig(PlanConfig):
    """What decided a plan. Its groups are those that its strategy used, each with its own `align`."""

    strategy: str
    group_costs: tuple[tuple[float, float, float], ...] | None = None
    """Of each group, the seconds of a replica, on one of its pipeline stages, per squared token, per token and per
    micro-batch; None unless the strategy predicts them."""
    attention_pieces: tuple[tuple[int, int, float], ...] | None = None
    """What `--cp-sharding auto` predicts with: queries, keys and seconds of the profile's pieces."""
    packages: dict[str, str] | None = None
    """The packages, with versions, of a strategy or a packing that is not hbpack's own."""

    @property
    def planner(self) -> Strategy:
        """The strategy. Raises ConfigError if its package is not installed."""
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

    def decisions(self) -> dict[str, Any]:
        """JSON values of all that decides a plan; what groups were chosen with does not."""
        left_out = {*AutoGroupsConfig.model_fields, *self.planner.ignores, "align"}
        left_out |= set() if self.packages else {"packages"}
        return self.model_dump(mode="json", exclude=left_out)

    def as_given(self, **others: Any) -> PlanConfig:
        """The options that a user would give for this plan, with others: those at their strategy's default are not."""
        values = {name: getattr(self, name) for name in PlanConfig.model_fields}
        usual = {name: default_of(field, self.strategy) for name, field in PlanConfig.model_fields.items()}
        given = {name: value for name, value in values.items() if value != usual[name]}
        groups = used_groups(self.groups, self.planner)
        return validate(PlanConfig, {**given, "strategy": self.strategy, "groups": groups, **others})

    @field_validator("groups")
    @classmethod
    def _choose_groups(cls, groups: tuple[Group, ...], info: ValidationInfo) -> tuple[Group, ...]:
        return groups  # They were chosen.

    @model_validator(mode="after")
    def _check(self) -> PlannedConfig:
        return self  # They fitted each other when the plan was made.
