"""The options of a plan, and how they fit together."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo, field_validator, model_validator
from pydantic_core import PydanticCustomError

from packer_cli.config.defaults import REQUIRED, by_strategy, default_of, refusal, require_declared
from packer_cli.config.fields import AutoGroupsConfig, StepTokens, or_another
from packer_cli.config.groups import (
    choose_groups,
    read_align,
    read_group,
    require_all_used,
    used_groups,
    with_parallel,
)
from packer_cli.config.messages import validate
from packer_cli.config.validation import read_validation
from packer_cli.errors import ConfigError
from packer_cli.format.layout import ONE_GPU
from packer_cli.panels import Panel
from packer_cli.plan.core.groups import Group, divisors, require_aligned
from packer_cli.plan.strategies.protocol import Strategy
from packer_cli.plan.strategies.registry import (
    DEFAULT,
    PACKED,
    STRATEGIES,
    find_strategy,
    name_in_record,
    packed_names,
    unknown_strategy,
)
from packer_cli.plugins import Registry
from packer_cli.sizes import counted, format_tokens

AUTO = "auto"
"""The value of `groups` that has them chosen."""

Align = Annotated[int | str | None, BeforeValidator(read_align, json_schema_input_type=int | str | None)]


def _describe() -> str:
    whose = "; ".join(f"`{name}`: {strategy.short}" for name, strategy in STRATEGIES.items() if name in PACKED)
    details = " ".join(strategy.details for strategy in STRATEGIES.values() if strategy.details)
    return f"Whose plan: {whose}. It sets the defaults of other options, such as --packing and --balance. {details}"


def _known(name: str) -> str:
    if name not in STRATEGIES:
        raise ValueError(unknown_strategy(name, packed_names()))
    if STRATEGIES.package(name) is not None:
        require_declared(name, PlanConfig.model_fields)
    return name


class PlanConfig(AutoGroupsConfig):
    """Lengths to plan."""

    strategy: Annotated[str, AfterValidator(_known), or_another(PACKED), Panel.PACKING] = Field(
        default=DEFAULT, description=_describe()
    )
    align: Annotated[Align, Panel.PACKING] = None
    """Count each sample at its length rounded up to a multiple of this, for trainers that pad each sample: tokens, or
    N*cp for N times the SP or CP degree of each group above degree 1; or of several, such as 2*cp,32.
    TransformerEngine (Megatron, NeMo) needs 2*cp with context parallelism. By default, samples are not padded."""
    groups: tuple[Group, ...] = by_strategy("groups", REQUIRED)
    """CAPACITY[:SP_DEGREE[:CHECKPOINT_LAYERS]] of each, shortest first, such as 16k:1,128k:8; or `auto`, to choose
    them from the lengths with --model and --gpu, or --profile."""
    gpus: int = Field(ge=1, le=2**20)
    """Number of GPUs that train."""
    packing: Annotated[str, Panel.PACKING] = by_strategy("packing", "bfs")
    """Packing algorithm with its options, such as isf:rounds=10."""
    fill: Annotated[Literal["balanced", "greedy", "longest"], Panel.PACKING] = by_strategy("fill", "balanced")
    """Which short samples fill long packs: `balanced`: those that even out attention work; `greedy`: all that fit,
    in the order of the data (HBP); `longest`: the longest that fit."""
    balance: Annotated[str, Panel.BALANCE] = by_strategy("balance", "refine")
    """Which packs share an iteration: `sort`: those of similar attention work (HBP); `window:K`: the same within
    windows of K iterations; `none`: random ones. `+refine` also exchanges samples within iterations; `refine` is
    `sort+refine`."""
    mask: Annotated[Literal["document", "causal"], Panel.PACKING] = "document"
    """What a token may attend to: `document`: those before it of its own sample; `causal`: all before it in its row.
    It decides the attention work of a pack; the loader takes it from the set."""
    cp_sharding: Annotated[str, Panel.PACKING] = by_strategy("cp_sharding", "auto")
    """How the ranks of a context-parallel group (--parallel cp=N) divide a row: `sequence`: they cut the row;
    `document`: they cut each sample, so that attention work is even; `static`: the one of the two that is faster for
    all packs together; `auto[:rho=R]`: for each pack the faster, by the attention times of --profile or, without it,
    by tiles of 128 tokens, which pieces of under 256 tokens compute at R (default 1) of the full rate."""
    cost: Annotated[str, Panel.BALANCE] = by_strategy("cost", "quadratic")
    """What to even out: `quadratic`: attention work, the sum of squared lengths (HBP); `A,B`: A a squared token and B
    a token, such as 1,24576 for a 7B model; `profile`: both from --profile, or from --model and --gpu."""
    overflow: Annotated[Literal["split", "truncate", "drop", "error"], Panel.PACKING] = "split"
    """What to do with samples longer than the largest group."""
    max_samples: Annotated[int | None, Panel.PACKING] = by_strategy("max_samples", None, ge=1, lt=2**31)
    """Most samples of a pack, for kernels and graphs that take borders of a fixed number of samples. A lower number
    pads more. By default, as many as fit."""
    global_tokens: Annotated[StepTokens | None, Panel.BALANCE] = None
    """Tokens in an optimizer step. By default, each iteration is one step."""
    lockstep: Annotated[Literal["all", "1"], BeforeValidator(str), Panel.BALANCE] = by_strategy("lockstep", "all")
    """Which GPUs share collectives in every micro-batch: `all` of them (FSDP, ZeRO-2 and 3); or those of `1` replica
    (DDP, ZeRO-1). Then each replica runs as many micro-batches as its share of a step needs, and the loader
    gives lists of micro-batches (`lockstep=False`). `1` needs --global-tokens."""
    step_mix: Annotated[Literal["alternate", "stratified"], Panel.BALANCE] = by_strategy("step_mix", "alternate")
    """How to combine iterations into steps of several: `alternate`: shuffled; `stratified`: with the same proportions
    of groups and lengths in every step."""
    curriculum: Annotated[str, Panel.BALANCE] = by_strategy("curriculum", "short")
    """What the first --curriculum-steps are: `short`: steps without the longest group or, if there is one group, of
    the lighter half of its packs; `skyladder[:START]`: attention sees START tokens of a sample at a time (default 32),
    growing by the same amount in each step; `growlength[:START]`: the same from 128 tokens on, doubling at equal
    intervals."""
    curriculum_steps: Annotated[int, Panel.BALANCE] = by_strategy("curriculum_steps", 0, ge=0, lt=2**31)
    """Steps of the curriculum at the start of the first epoch."""
    epochs: Annotated[int, Panel.BALANCE] = Field(default=1, ge=1, le=1000)
    """Epochs to write rank manifests for; the loader can go on beyond them."""
    seed: Annotated[int, Panel.BALANCE] = Field(default=0, ge=0)
    """Seed for everything random."""

    @property
    def planner(self) -> Strategy:
        """The strategy."""
        return find_strategy(self.strategy)

    @property
    def is_auto(self) -> bool:
        """Whether the groups are still to be chosen."""
        return not self.groups

    def with_groups(self, groups: Sequence[Group]) -> PlanConfig:
        """The options with those of these groups that the strategy uses."""
        if not self.planner.finds_layouts:  # It has degrees of its own.
            groups = with_parallel(groups, self.layout)
        return self.model_copy(update={"groups": choose_groups(groups, self.planner, self.align, given=())})

    def not_for(self, name: str) -> set[str]:
        """Options that do not go over to another strategy."""
        other = find_strategy(name)
        return {*other.ignores, *(["packing"] if other.packings() != self.planner.packings() else [])}

    def with_strategy(self, name: str) -> PlanConfig:
        """The options that were given, for another strategy; without groups whose replicas it cannot run side by side.

        Raises:
            ConfigError: they do not fit it.
        """
        other = find_strategy(name)
        given = {field: getattr(self, field) for field in self.model_fields_set - self.not_for(name)}
        able = self.groups
        if self.planner.mixes_layouts and not other.mixes_layouts:
            able = tuple(group for group in able if self.gpus % group.num_gpus == 0) or able
        groups = used_groups(able, other) if able else AUTO
        config = validate(PlanConfig, {**given, "strategy": name, "groups": groups})
        return config if self.is_auto else config.with_groups(able)

    @field_validator("groups", mode="before", json_schema_input_type=str | list[str | Group])
    @classmethod
    def _read_groups(cls, value: Any) -> Any:
        if value is REQUIRED:
            raise PydanticCustomError("missing", "it is required")
        if value in (AUTO, [AUTO], ()):
            return ()
        if value == []:
            raise PydanticCustomError("too_short", "no group is given")
        if isinstance(value, str):
            value = value.split(",")
        if isinstance(value, (int, dict)):
            value = [value]
        return tuple(map(read_group, value)) if isinstance(value, (list, tuple)) else value

    @field_validator("groups")
    @classmethod
    def _choose_groups(cls, groups: tuple[Group, ...], info: ValidationInfo) -> tuple[Group, ...]:
        is_sorted = all(a.capacity < b.capacity for a, b in pairwise(groups))  # Else `_check_groups` refuses them.
        if not groups or not is_sorted or not {"strategy", "align", "parallel"} <= info.data.keys():
            return groups
        planner = STRATEGIES[info.data["strategy"]]
        if not planner.finds_layouts:
            groups = with_parallel(groups, info.data["parallel"] or ONE_GPU)
        require_all_used(groups, planner)
        return choose_groups(groups, planner, info.data["align"], given=groups)

    @model_validator(mode="after")
    def _check(self) -> PlanConfig:
        why = refusal(self.strategy, self)
        if why:
            raise ValueError(f"--strategy: {why}")
        self._check_mask()
        self._check_steps()
        self._check_groups()
        return self

    def _check_mask(self) -> None:
        if self.mask == "causal" and (self.align not in (None, 1) or any(group.align > 1 for group in self.groups)):
            raise ValueError(
                "--align pads each sample, but with --mask causal a whole row is one segment; leave one of them out"
            )
        if self.mask == "causal" and self.is_auto:
            raise ValueError("--groups auto predicts the time of --mask document; name the groups for --mask causal")

    def _check_steps(self) -> None:
        if "tokens of a step" in self.planner.needs and self.global_tokens is None:
            raise ValueError(f"--strategy {self.strategy} needs --global-tokens: it plans the samples of each step")
        is_read = "lockstep" not in self.planner.ignores
        if self.lockstep == "1" and self.global_tokens is None and is_read:
            raise ValueError(
                "--lockstep 1 needs --global-tokens: replicas run freely until a step ends, and without it every "
                "iteration is a step"
            )

    def _check_groups(self) -> None:
        capacities = [group.capacity for group in self.groups]
        if sorted(set(capacities)) != capacities:
            remedy = "sort them" if len(set(capacities)) == len(capacities) else "leave one of the equal ones out"
            raise ValueError(
                f"groups must have rising capacities, got {','.join(map(format_tokens, capacities))}; {remedy}"
            )
        for group in self.groups:
            require_aligned(group)
        if self.planner.finds_layouts:
            return
        of_replica = self.layout.num_gpus
        if (self.is_auto or self.planner.mixes_layouts) and self.gpus % of_replica:
            raise ValueError(
                f"a replica has {of_replica} GPUs ({self.layout}), which must divide the number of GPUs, {self.gpus}; "
                f"choose lower degrees, or a multiple of {of_replica} GPUs"
            )
        if self.planner.mixes_layouts:
            largest = max((group.num_gpus for group in self.groups), default=1)
            if largest > self.gpus:
                raise ValueError(
                    f"a replica of {largest} GPUs does not fit {counted(self.gpus, 'GPU')}; end --groups with a lower "
                    "SP degree"
                )
            lowest = min((group.num_gpus for group in self.groups), default=1)
            if any(number % lowest for number in (self.gpus, *(group.num_gpus for group in self.groups))):
                raise ValueError(
                    f"with samples aligned to {self.groups[0].align} tokens, --strategy {self.strategy} has no group "
                    f"of SP degree 1, which would fill the rest of {self.gpus} GPUs; give longer --groups or a lower "
                    "--align"
                )
            return
        for group in self.groups:
            if self.gpus % group.num_gpus and group.num_gpus > group.sp_size:
                raise ValueError(
                    f"a replica of group {group} has {group.num_gpus} GPUs ({group.layout}), which must divide the "
                    f"number of GPUs, {self.gpus}; choose lower degrees, or a multiple of {group.num_gpus} GPUs"
                )
            if self.gpus % group.sp_size:
                raise ValueError(
                    f"the SP degree of group {group} must divide the number of GPUs, {self.gpus}; "
                    f"choose one of {', '.join(str(d) for d in divisors(self.gpus))}"
                )
        if len({group.pp_size for group in self.groups}) > 1 and self.lockstep == "all":
            raise ValueError(
                "groups with different numbers of pipeline stages cannot run in lockstep; give --lockstep 1, or the "
                "same pp_size"
            )


class StorePlanConfig(PlanConfig):
    """Tokens to plan."""

    validation: Annotated[
        str | None, BeforeValidator(read_validation, json_schema_input_type=int | str | None), Panel.MAIN
    ] = None
    """Samples to set aside for validation, in OUT/validation: a share of them, such as 1%, or a number, such as 2000.
    A hash of its tokens decides for each sample, so the choice stays the same when data is added, and equal samples
    stay together. A number takes the lowest hashes. Training never sees these samples."""


OF_VALIDATION = ("gpus", "mask", "cost", "overflow", "max_samples", "seed", "validation")
"""Options of training that its validation set has, too; the others are at their defaults."""


class PlannedConfig(StorePlanConfig):
    """What decided a plan. Its groups are those that its strategy used, each with its own `align`."""

    strategy: str
    is_validation: bool = False
    """Whether the plan is of the samples that `validation` sets aside, rather than of the others."""
    group_costs: tuple[tuple[float, float, float], ...] | None = None
    """Of each group, the seconds of a replica, on one of its pipeline stages, per squared token, per token and per
    micro-batch; None unless the strategy predicts them. WLB-LLM's has those of each capacity that it chooses from."""
    attention_pieces: tuple[tuple[int, int, float], ...] | None = None
    """What `--cp-sharding auto` predicts with: queries, keys and seconds of the profile's pieces."""
    gpu_model: dict[str, Any] | None = None
    """What the seconds of steps are predicted with, see `packer_cli.cost.models.GpuModel`; None without a model of the
    GPUs, and of a validation set."""
    packages: dict[str, str] | None = None
    """The packages, with versions, of a strategy or a packing that is not hbpack's own."""

    @property
    def sets_aside(self) -> bool:
        """Whether the folder of the plan has a validation set beside it."""
        return self.validation is not None and not self.is_validation

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
        left_out |= {name for name in ("validation", "is_validation", "gpu_model") if not getattr(self, name)}
        left_out |= {
            name
            for name in self.planner.unrecorded
            if getattr(self, name) == default_of(PlanConfig.model_fields[name], self.strategy)
        }
        return {**self.model_dump(mode="json", exclude=left_out), "groups": [group.values for group in self.groups]}

    def as_given(self, **others: Any) -> PlanConfig:
        """The options that a user would give for this plan, with others: those at their strategy's default are not."""
        values = {name: getattr(self, name) for name in PlanConfig.model_fields}
        usual = {name: default_of(field, self.strategy) for name, field in PlanConfig.model_fields.items()}
        given = {name: value for name, value in values.items() if value != usual[name]}
        groups = used_groups(self.groups, self.planner)
        return validate(PlanConfig, {**given, "strategy": self.strategy, "groups": groups, **others})

    @model_validator(mode="before")
    @classmethod
    def _read_strategy(cls, values: Any) -> Any:
        if not isinstance(values, dict) or "strategy" not in values:
            return values
        return {**values, "strategy": name_in_record(values["strategy"], values)}

    @field_validator("groups")
    @classmethod
    def _choose_groups(cls, groups: tuple[Group, ...], info: ValidationInfo) -> tuple[Group, ...]:
        return groups  # They were chosen.

    @model_validator(mode="after")
    def _check(self) -> PlannedConfig:
        return self  # They fitted each other when the plan was made.
