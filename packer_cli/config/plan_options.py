"""The options of a plan, and how they fit together."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo, field_validator, model_validator
from pydantic_core import PydanticCustomError

from packer_cli.config.fields import (
    OF_TREES,
    REQUIRED,
    ZERO_IS_NONE,
    AutoGroupsConfig,
    GpuConfig,
    StepTokens,
    by_strategy,
    default_of,
    or_another,
    read_validation,
    refusal,
    require_declared,
    unsupported,
    validate,
)
from packer_cli.config.groups import choose_groups, parse_group, read_align, read_mapping, used_groups
from packer_cli.format.layout import ONE_GPU
from packer_cli.panels import Panel, Shown
from packer_cli.plan.core.groups import Group, read_path_tokens, require_aligned
from packer_cli.plan.strategies.protocol import NOT_FOR_ALL, Strategy
from packer_cli.plan.strategies.registry import DEFAULT, PACKED, STRATEGIES, find_strategy, packed_names
from packer_cli.plugins import unknown
from packer_cli.sizes import format_tokens

AUTO = "auto"
"""The value of `groups` for which hbpack chooses them; until then the field is empty."""

_STRATEGY = f"""Planning method: {", ".join(PACKED)}; docs/strategies.md explains each.

It sets the defaults of other options, such as --packing and --balance."""

Decisions = dict[str, Any]
"""JSON of the options that decided a plan, by their names in `PlannedConfig`."""
Align = Annotated[int | str | None, BeforeValidator(read_align, json_schema_input_type=int | str | None)]


def _known(name: str) -> str:
    if name not in STRATEGIES:
        raise ValueError(unknown("strategy", name, packed_names()))
    if STRATEGIES.package(name) is not None:
        require_declared(name, PlanConfig.model_fields)
    return name


class PlanConfig(AutoGroupsConfig):
    """Lengths to plan."""

    strategy: Annotated[
        str, AfterValidator(_known), or_another(PACKED), Shown(Panel.PACKING, "NAME", packed_names, is_common=True)
    ] = Field(default=DEFAULT, description=_STRATEGY)
    align: Annotated[Align, Shown(Panel.PACKING, "N|N*cp[,...]")] = None
    """Round each sample up to a multiple of this many tokens, for trainers that pad each sample.

    `N*cp` is N times the SP or CP degree of each group above degree 1, and 2*cp,32 is a multiple of both.
    TransformerEngine (Megatron, NeMo) needs 2*cp with context parallelism. By default, samples are not padded."""
    groups: Annotated[tuple[Group, ...], Shown(metavar="GROUPS|auto", is_common=True)] = by_strategy(
        "groups", REQUIRED
    )
    """Length groups as CAPACITY:SP_DEGREE, shortest first, such as 16k:1,128k:8; `auto` chooses them.

    CAPACITY is the most tokens of a pack, and SP_DEGREE (by default 1) the number of GPUs that share a row. After
    another colon, you can give the number of layers to checkpoint, as in 16k:1,128k:8:20. `auto` chooses groups for
    your lengths, and needs --model and --gpu, or --profile."""
    gpus: Annotated[int, Shown(is_common=True)] = Field(ge=1, le=2**20)
    """Number of GPUs you train on."""
    packing: Annotated[
        str, Shown(Panel.PACKING, "NAME[:OPTION=VALUE,...]", lambda: STRATEGIES[DEFAULT].packings())
    ] = by_strategy("packing", "bfs")
    """Packing algorithm and its options, such as isf:rounds=10.

    docs/cli.md lists them under "Packing algorithms". For samples that share prefixes, the default is isf."""
    fill: Annotated[Literal["balanced", "greedy", "longest"], Shown(Panel.PACKING)] = by_strategy("fill", "balanced")
    """Which short samples fill up long packs.

    - `balanced`: those that even out attention work
    - `greedy`: all that fit, in the order of the data (HBP)
    - `longest`: the longest that fit"""
    balance: Annotated[str, Shown(Panel.BALANCE, "refine|sort|window:K|none")] = by_strategy("balance", "refine")
    """Which packs share an iteration.

    - `sort`: packs of similar attention work (HBP)
    - `window:K`: the same, within windows of K iterations
    - `none`: random packs

    Add `+refine` to any of them to also exchange samples within iterations. `refine` alone is `sort+refine`."""
    mask: Annotated[Literal["document", "causal"], Shown(Panel.PACKING)] = "document"
    """Tokens that a token attends to: earlier ones of its own sample, or of its whole row.

    The mask decides the attention work of a pack, and the loader takes it from the set.

    - `document`: earlier tokens of its own sample
    - `causal`: all earlier tokens of its row"""
    cp_sharding: Annotated[str, Shown(Panel.PACKING, "sequence|document|static|auto[:rho=R]")] = by_strategy(
        "cp_sharding", "auto"
    )
    """Rule by which context-parallel ranks (--parallel cp=N) divide a row.

    - `sequence`: they cut the row
    - `document`: they cut each sample, so that attention work is even
    - `static`: the faster of the two, for all packs together
    - `auto`: the faster of the two, for each pack. Its attention times are those of --profile. Without a profile, it
      counts tiles of 128 tokens, and pieces of under 256 tokens run at R of the full rate (`auto:rho=R`; by default
      1)"""
    cost: Annotated[str, Shown(Panel.BALANCE, "quadratic|profile|A,B")] = by_strategy("cost", "quadratic")
    """Cost to even out: attention work, or time.

    - `quadratic`: attention work, the sum of squared lengths (HBP)
    - `A,B`: A for each squared token and B for each token, such as 1,24576 for a 7B model
    - `profile`: A and B from --profile, or from --model and --gpu"""
    overflow: Annotated[Literal["split", "truncate", "drop", "error"], Shown(Panel.PACKING, is_common=True)] = "split"
    """Treatment of samples longer than the largest group."""
    max_samples: Annotated[int | None, ZERO_IS_NONE, Shown(Panel.PACKING)] = by_strategy(
        "max_samples", None, ge=1, lt=2**31
    )
    """Most samples in a pack; by default, or with 0, as many as fit.

    For kernels and graphs that take a fixed number of sample borders. A lower number pads more."""
    max_path_tokens: Annotated[str | None, BeforeValidator(read_path_tokens), Shown(Panel.PACKING, "Nx|none")] = (
        by_strategy("max_path_tokens", None)
    )
    """Most path tokens of a pack, as a multiple of its capacity; by default 2x. Only for samples that share prefixes.

    In every layer, a varlen kernel gathers the keys of each branch. A higher limit packs more samples, and
    takes more memory. `none` is for FlexAttention, which gathers nothing."""
    global_tokens: Annotated[StepTokens | None, ZERO_IS_NONE, Shown(Panel.BALANCE, "TOKENS", is_common=True)] = None
    """Tokens in an optimizer step; by default, or with 0, each iteration is a step."""
    lockstep: Annotated[
        str, BeforeValidator(str, json_schema_input_type=int | str), Shown(Panel.BALANCE, "all|1|GPUS")
    ] = by_strategy("lockstep", "all")
    """GPUs that meet in every micro-batch: `all` (FSDP, ZeRO-2/3), or those of `1` replica (DDP, ZeRO-1).

    A number above 1 predicts that so many GPUs share the weights and meet (HSDP), and all at the end of a step. With
    `1`, each replica runs as many micro-batches as its share of a step needs, and the loader gives lists of
    micro-batches (`lockstep=False`). It needs --global-tokens."""
    step_mix: Annotated[Literal["alternate", "stratified"], Shown(Panel.BALANCE)] = by_strategy(
        "step_mix", "alternate"
    )
    """Rule by which several iterations are combined into a step.

    - `alternate`: shuffled
    - `stratified`: with the same proportions of groups and lengths in every step"""
    curriculum_steps: Annotated[int, Shown(Panel.BALANCE)] = by_strategy("curriculum_steps", 0, ge=0, lt=2**31)
    """Steps at the start of the first epoch that train on short samples.

    They take no packs of the longest group or, with one group, only the lighter half."""
    epochs: Annotated[int, Shown(Panel.BALANCE, is_common=True)] = Field(default=1, ge=1, le=1000)
    """Epochs to write rank manifests for; the loader can go on beyond them."""
    seed: Annotated[int, Shown(Panel.BALANCE)] = Field(default=0, ge=0)
    """Seed for everything random."""

    @property
    def planner(self) -> Strategy:
        """The strategy."""
        return find_strategy(self.strategy)

    @property
    def used_packing(self) -> str | None:
        """The packing; None where the strategy takes none, and packs in its own way."""
        strategy = STRATEGIES.get(self.strategy)  # None for a plan whose package is not installed here.
        return None if strategy is not None and "packing" in strategy.ignores else self.packing

    @property
    def used_algorithm(self) -> Literal["search", "hbp"]:
        """The algorithm by which `--groups auto` chooses."""
        return self.group_algorithm or self.planner.defaults.get("group_algorithm", "search")

    def names_given(self) -> set[str]:
        """Return the options that the user gave."""
        return {*self.model_fields_set}

    def with_groups(self, groups: Sequence[Group]) -> Self:
        """Return the options with those of these groups that the strategy uses."""
        chosen = choose_groups(groups, self.planner, self.layout, self.align, are_named=False)
        return self.model_copy(update={"groups": chosen})

    def for_unit(self, unit: str | None) -> Self:
        """Return the options for samples that share prefixes ("item") or nothing ("sample"); None: as they are.

        Each that was not given has its default for these.
        """
        has_limit = self.max_path_tokens is not None
        if not has_limit and unit != "item":
            return self
        names, fields = OF_TREES.keys() - self.names_given(), type(self).model_fields
        found = self.model_copy(
            update={name: default_of(fields[name], self.strategy, of_trees=unit != "sample") for name in names}
        )
        found.model_fields_set.difference_update(names)
        return found

    def not_for(self, name: str) -> set[str]:
        """Find the options that do not go over to another strategy."""
        other = find_strategy(name)
        return {*other.ignores, *(["packing"] if other.packings() != self.planner.packings() else [])}

    def with_others(self, **others: Any) -> StorePlanConfig:
        """Combine the options that were given with others; another strategy gets the options that it has.

        A strategy gets no groups whose replicas it cannot run side by side, unless there are no others.

        Raises:
            ConfigError: an option is wrong, or does not fit the others.
        """
        strategy = find_strategy(others.get("strategy", self.strategy))
        names, groups = self.names_given(), self.groups
        if strategy.name != self.strategy:
            names -= self.not_for(strategy.name) | (NOT_FOR_ALL - strategy.supports)
            if not strategy.mixes_layouts:
                groups = tuple(group for group in groups if self.gpus % group.num_gpus == 0) or groups
        if "cost" in strategy.defaults and others.keys() & GpuConfig.model_fields.keys():
            names -= {"cost"}
        own = {name: getattr(self, name) for name in names}
        if others.keys() & {"groups", "parallel"} or "align" not in strategy.supports or self.planner.finds_layouts:
            own |= self._of_all_groups(strategy)
            groups = tuple({group.capacity: parse_group(str(group)) for group in groups}.values())
        own |= {"strategy": strategy.name, "groups": used_groups(groups, strategy) if groups else AUTO}
        config = validate(StorePlanConfig, {**own, **others})
        config = config if self.max_path_tokens is None else config.for_unit("item")
        return config if "groups" in others or not config.groups else config.with_groups(groups)

    def _of_all_groups(self, strategy: Strategy) -> dict[str, Any]:
        """Return the groups' `parallel` and `align`, for other groups; leave out each that differs between groups."""
        if strategy.finds_layouts or self.planner.finds_layouts:
            return {}
        of_group = {"sp": 1, "cp": 1} if strategy.mixes_layouts or self.planner.mixes_layouts else {"sp": 1}
        aligns = {group.align for group in self.groups if "align" in strategy.supports} - {1}
        found: dict[str, set[Any]] = {"align": aligns}
        found["parallel"] = {group.layout._replace(**of_group) for group in self.groups}
        return {name: values.pop() for name, values in found.items() if len(values) == 1 and ONE_GPU not in values}

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
        if not isinstance(value, (list, tuple)):
            return value
        return tuple(parse_group(str(each)) if isinstance(each, (int, str)) else read_mapping(each) for each in value)

    @field_validator("groups")
    @classmethod
    def _choose_groups(cls, groups: tuple[Group, ...], info: ValidationInfo) -> tuple[Group, ...]:
        is_sorted = all(a.capacity < b.capacity for a, b in pairwise(groups))  # Else `_check` refuses them.
        if not groups or not is_sorted or not {"strategy", "align", "parallel"} <= info.data.keys():
            return groups
        strategy, parallel = STRATEGIES[info.data["strategy"]], info.data["parallel"] or ONE_GPU
        return choose_groups(groups, strategy, parallel, info.data["align"], are_named=True)

    @model_validator(mode="after")
    def _check(self) -> PlanConfig:
        strategy, option = STRATEGIES[self.strategy], unsupported(self.strategy, self)
        if option is not None:
            raise ValueError(f"--strategy: {refusal(self.strategy, option, self)}")
        if self.mask == "causal" and (self.align not in (None, 1) or any(group.align > 1 for group in self.groups)):
            raise ValueError(
                "--align pads each sample, but with --mask causal a whole row is one segment; leave one of them out"
            )
        if self.mask == "causal" and not self.groups:
            raise ValueError("--groups auto predicts the time of --mask document; name the groups for --mask causal")
        if "tokens of a step" in strategy.needs and self.global_tokens is None:
            raise ValueError(f"--strategy {self.strategy} needs --global-tokens: it plans the samples of each step")
        if not re.fullmatch("all|[1-9][0-9]{0,8}", self.lockstep):
            raise ValueError(
                f"--lockstep {self.lockstep} must be all, 1, or the number of GPUs that share the weights"
            )
        if self.lockstep == "1" and self.global_tokens is None and "lockstep" not in strategy.ignores:
            raise ValueError(
                "--lockstep 1 needs --global-tokens: replicas run freely until a step ends, and without it every "
                "iteration is a step"
            )
        capacities = [group.capacity for group in self.groups]
        if sorted(set(capacities)) != capacities:
            remedy = "sort them" if len(set(capacities)) == len(capacities) else "leave one of the equal ones out"
            raise ValueError(
                f"groups must have rising capacities, got {','.join(map(format_tokens, capacities))}; {remedy}"
            )
        for group in self.groups:
            require_aligned(group)
        layouts = [group.layout for group in self.groups] or [self.parallel or ONE_GPU]
        strategy.require_gpus(layouts, self.gpus)
        if len({layout.pp for layout in layouts}) > 1 and self.lockstep != "1":
            raise ValueError(
                "groups with different numbers of pipeline stages cannot run in lockstep; give --lockstep 1, or the "
                "same pp_size"
            )
        return self


class StorePlanConfig(PlanConfig):
    """Tokens to plan."""

    validation: Annotated[
        str | None,
        BeforeValidator(read_validation, json_schema_input_type=int | str | None),
        Shown(metavar="SHARE%|N", is_common=True),
    ] = None
    """Samples to set aside for validation: a share such as 1%, or a number.

    They go to OUT/validation, and training never sees them. A hash of a sample's tokens decides, so the choice stays
    the same when data is added, and equal samples stay together. A number takes the lowest hashes. With 0, no samples
    are set aside."""
    dedup: Annotated[Literal["off", "report", "drop"], Shown(Panel.PACKING)] = "off"
    """Treatment of samples with the same tokens and loss as an earlier one, of any input.

    - `off`: they are not looked for
    - `report`: they are counted
    - `drop`: only the first stays, and `rejected.jsonl` names the others

    Items, such as pairs, are compared whole. Looking for them reads all tokens."""

    def decisions(self) -> Decisions:
        """Return the JSON values of everything that decides a plan; the options that chose groups do not."""
        left_out = {*AutoGroupsConfig.model_fields, *find_strategy(self.strategy).ignores, "align"}
        left_out |= {"dedup"} if self.dedup == "off" else set()
        return {**self.model_dump(mode="json", exclude=left_out), "groups": [*map(vars, self.groups)]}
