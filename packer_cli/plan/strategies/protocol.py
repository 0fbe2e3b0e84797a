"""Strategies' protocol, and the request they plan from. Without numpy, so that reading the command line is fast."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from packer_cli.errors import ConfigError
from packer_cli.plan.core.groups import UNLIMITED, Group
from packer_cli.plugins import Block, blaming
from packer_cli.sizes import counted

if TYPE_CHECKING:
    from packer_cli.cost.predict import GpuModel
    from packer_cli.format.constants import Lockstep, Mask
    from packer_cli.format.layout import Layout
    from packer_cli.plan.core.attention_rates import ShardingRule
    from packer_cli.plan.core.cost import Cost
    from packer_cli.plan.core.schedule import StepRules
    from packer_cli.plan.core.types import Int32Array, Int64Array, Pieces, Plan, Schedule
    from packer_cli.plan.kernels.balance import BalanceRule
    from packer_cli.plan.packing.base import PackingOptions


@dataclass(frozen=True, kw_only=True)
class SchemeRow:
    """A kind of pipeline."""

    name: str
    """Name, by which layouts refer to it."""
    layout: dict[str, int]
    """Its parallel degrees by name, such as `tp`."""
    num_gpus: int
    """GPUs of a pipeline."""
    capacity: int
    """Most tokens of a micro-batch."""
    checkpoint_layers: int
    """Layers whose activations are computed again."""
    gpu_seconds_short: float
    """GPU-seconds of a million tokens in samples of 1,024 tokens, or the capacity, without waiting."""
    gpu_seconds_long: float
    """The same in samples as long as the capacity."""


@dataclass(frozen=True, kw_only=True)
class LayoutRow:
    """A layout: pipelines that divide all GPUs."""

    pipelines: dict[str, int]
    """Number of each scheme's pipelines."""
    longest: int
    """Longest sample that it holds."""
    fastest: float
    """Share of the steps in which it is the fastest."""
    step_seconds: float | None
    """Mean time of a step, if all used it; None if it does not hold every sample."""


@dataclass(frozen=True, kw_only=True)
class LayoutChoice:
    """The layouts, that which saves most first, and what they save."""

    schemes: tuple[SchemeRow, ...]
    """The kinds of pipelines that layouts are made of."""
    layouts: tuple[LayoutRow, ...]
    """The layouts that steps choose from."""
    step_seconds: float
    """Mean time of a step, each on its fastest layout."""
    num_steps: int
    """Steps of an epoch."""
    num_tried: int
    """Steps that the times are means of."""
    num_gpus: int
    """Number of GPUs."""
    global_tokens: int
    """Tokens of an optimizer step."""


OptionValues = dict[str, Any]
"""Values of plan options (`PlannedConfig`) by name."""
Load = Callable[..., "GpuModel"]
Rates = tuple[float, float, float]
"""Seconds of a micro-batch on one pipeline stage of a replica: per squared token, per token, and constant."""

NOT_FOR_ALL = frozenset({"align", "mask", "max_path_tokens", "max_samples"})
"""Plan options that some strategies do not support. One that supports `max_path_tokens` packs items whose branches
share prefixes, by their sizes, path tokens and own work."""
Need = Literal["a cost model", "tokens of a step", "a stream"]
"""One that needs a stream packs it into micro-batches of one context window, its only group."""


@dataclass(frozen=True, kw_only=True)
class PlanRequest:
    """Everything besides the lengths that decides a plan, as numbers."""

    strategy: Strategy
    groups: tuple[Group, ...]
    """By increasing capacity, each a multiple of its `align`. The GPUs of each one's replica divide `num_gpus`, unless
    the strategy `mixes_layouts`; then the largest fits."""
    num_gpus: int
    algorithm: Any
    """One of the strategy's `packings`."""
    packing_options: PackingOptions
    """Options of the algorithm."""
    steps: StepRules
    balance: BalanceRule
    """Which packs share an iteration."""
    sharding: ShardingRule
    """Rule by which CP ranks divide the rows that they share."""
    epochs: int = 1
    """Epochs to schedule; all use the same packs."""
    seed: int = 0
    fill: Literal["balanced", "greedy", "longest"] = "greedy"
    """Which shorter samples fill the free space of long packs, see `plan.kernels.fill`."""
    linear: int = 0
    """Tokens, at least 0: the plan evens out work of s (s + linear) per sample, see `plan.core.cost`, whose
    `require_exact` limits it."""
    lockstep: Lockstep = None
    """GPUs that run micro-batches in lockstep, see `Plan.lockstep`."""
    rates: tuple[Rates, ...] | None = None
    """Rates of each group, for a strategy that needs a cost model; of each capacity that WLB-LLM's may choose."""
    mask: Mask = "document"
    """With which the packs are trained on. A causal one over whole rows evens out tokens, see `evened`."""
    max_samples: int = UNLIMITED
    """Most pieces of a pack, at least 1."""
    limits: tuple[int, ...] = ()
    """See `Plan.limits`."""

    @property
    def evened(self) -> int:
        """The linear term of what the plan evens out: `linear`, or one so great that only tokens count."""
        from packer_cli.plan.core.cost import linear_of_tokens

        return self.linear if self.mask == "document" else linear_of_tokens(self.groups, self.num_gpus)

    @property
    def shapes_rows(self) -> bool:
        """Whether rows are more than samples one after another: trees, aligned, limited, or without borders."""
        is_aligned = any(group.align > 1 for group in self.groups)
        is_limited = self.max_samples != UNLIMITED
        return is_aligned or is_limited or self.mask != "document" or bool(self.limits)


class Strategy(ABC):
    """One way to plan. A subclass says what it is and reads, and how it plans; it keeps nothing between plans."""

    name: ClassVar[str]
    summary: ClassVar[str]
    """Summary of what the strategy does, and whose it is; for tables and docs."""
    defaults: ClassVar[Mapping[str, Any]] = {}
    """Plan options whose default is another here. One of the cost gives way to what a cost model predicts."""
    ignores: ClassVar[frozenset[str]] = frozenset()
    """Plan options without effect on it, which it refuses."""
    supports: ClassVar[frozenset[str]] = frozenset({"align"})
    """The options of `NOT_FOR_ALL` that it supports; of the others it refuses all values but the default."""
    demands: ClassVar[str] = ""
    """Duty of a trainer beyond running each iteration's packs in lockstep, after "must"."""
    needs: ClassVar[frozenset[Need]] = frozenset()
    mixes_layouts: ClassVar[bool] = False
    """Whether an iteration may have replicas of unlike layouts; they are balanced by predicted time, not by work."""
    ability: ClassVar[str] = "degrees"
    """The ability that it asks of a trainer where its groups have unlike degrees, see `packer_cli.config.fields`."""
    choose_layouts: ClassVar[Callable[[Any, Int32Array, PlanRequest], LayoutChoice] | None] = None
    """The layouts that it would choose from for samples (int32[n]), where it works out its own from the cost model, in
    place of the groups that were given. For `hbpack groups`."""
    baseline_name: ClassVar[str] = "ISF at the longest length"
    baseline_note: ClassVar[str] = (
        "as in HBP, isf packs the same samples to the longest group's capacity, at its degree; packs in random order "
        "(hbpack simulate also compares with the best of its own degrees)"
    )
    sample_bytes: ClassVar[int] = 0
    """Bytes that a plan takes for each sample at its peak, with its figures and the lengths, measured on samples of
    550 tokens, in steps of 2M of them; 0: as much as the packing says."""
    is_packed: ClassVar[bool] = True
    """Whether its plans may be written; those of what trainers do at run time are only compared."""

    def packings(self) -> Mapping[str, Any]:
        """Return the registry that `--packing` names: the shared algorithms, or packers of its own."""
        from packer_cli.plan.packing import REGISTRY

        return REGISTRY

    @property
    def packs_itself(self) -> bool:
        """Whether `--packing` names none of the shared algorithms with it."""
        return "packing" in self.ignores or self.packings() is not Strategy.packings(self)

    @property
    def keeps_steps(self) -> bool:
        """Whether its steps are decided as it packs, and stay together in a rebalance."""
        return bool(self.needs & {"tokens of a step", "a stream"})

    @property
    def finds_layouts(self) -> bool:
        """Whether it has `choose_layouts`."""
        return self.choose_layouts is not None

    def groups(self, given: Sequence[Group]) -> tuple[Group, ...]:
        """Return the groups that the strategy uses, of those given (by rising capacity, at least one)."""
        return tuple(given)

    def without_effect(self, options: Any) -> Mapping[str, str]:
        """Name options that change nothing beside these others, and say of each what follows its name.

        Where a part of an option changes nothing, this begins with the option's value and a colon.

        Args:
            options: the plan options (`PlanConfig`), by attribute.
        """
        return {}

    def check(self, request: PlanRequest) -> None:
        """Raise ValueError if parts of a request do not fit each other."""
        return

    def step_rules(self, rules: StepRules, balance: BalanceRule) -> StepRules:
        """Return the rules of the options, with its own decisions."""
        return rules

    def predict(self, options: Any, load: Load, wants_cost: bool) -> OptionValues:
        """Predict values of plan options: `groups`, `cost`, and `group_costs` for a strategy that needs a model.

        Args:
            options: see `without_effect`.
            load: loads the cost model for what is named, with `for_memory=True` one of which the memory is known.
            wants_cost: whether what to even out is to be predicted, too.

        Raises:
            ConfigError: there is no such model, or it does not fit.
        """
        found = {"groups": options.groups}
        if wants_cost:
            found["cost"] = str(_predicted_cost(load))
        if "a cost model" in self.needs:
            model = load(f"--strategy {self.name}")
            found["group_costs"] = tuple(stage_rates(group, model) for group in options.groups)
        return found

    @abstractmethod
    def plan(self, pieces: Pieces, request: PlanRequest) -> Plan:
        """Plan the pieces, each in exactly one pack. How CP ranks divide the rows is chosen later."""

    @abstractmethod
    def rest(self, plan: Plan, chosen: Int64Array, request: PlanRequest, epoch: int) -> Schedule:
        """Schedule the chosen packs of a plan on `request.num_gpus` GPUs; their samples stay as they are.

        Args:
            chosen: int64[r], pack numbers, each once.
            epoch: number of the epoch, which decides the order.
        """

    def require_gpus(self, layouts: Sequence[Layout], num_gpus: int) -> None:
        """Raise ConfigError if replicas of these layouts cannot run on so many GPUs."""
        for layout in layouts:
            if num_gpus % layout.num_gpus:
                multiple = math.lcm(*(each.num_gpus for each in layouts))
                below = num_gpus // multiple * multiple
                choices = " or ".join(str(number) for number in (below, below + multiple) if number)
                raise ConfigError(
                    f"--gpus {num_gpus}: a replica has {counted(layout.num_gpus, 'GPU')} ({layout}), which must "
                    f"divide it; choose {choices}, or plan with other degrees"
                )

    def baseline(self, plan: Plan, request: PlanRequest) -> tuple[Pieces, PlanRequest] | None:
        """Return the fair baseline: the plan's samples, and a request to plan them; None for HBP's naive packing."""
        return None

    def figures(self, plan: Plan, request: PlanRequest) -> Mapping[str, float | None]:
        """Return figures of the strategy's own, fields of `PipelineImbalances`."""
        return {}

    def blamed(self) -> Block:
        """Return a block for the strategy's code, whose errors name the strategy unless it is hbpack's own."""
        return blaming("strategy", self.name, type(self).__module__)


class UnlikeDegrees(Strategy):
    """Iterations whose replicas have unlike SP or CP degrees."""

    demands = "run replicas of unlike SP degrees side by side in one iteration"
    mixes_layouts = True
    ability = "unlike-degrees"

    def predict(self, options: Any, load: Load, wants_cost: bool) -> OptionValues:
        """Predict the seconds of each group, each with the checkpointed layers that it needs, not the longest's."""
        *shorter, longest = options.groups
        if options.has_gpu_model and longest.checkpoint_layers:
            try:
                memory = load("checkpointed layers").memory
                least = [memory.least_checkpoint_layers(each.capacity, each.layout) for each in shorter]
            except ConfigError:  # A profile may be too short for a model.
                return super().predict(options, load, wants_cost)
            layers = (memory.num_layers if each is None else each for each in least)
            own = (replace(group, checkpoint_layers=each) for group, each in zip(shorter, layers, strict=True))
            options = options.model_copy(update={"groups": (*own, longest)})
        return super().predict(options, load, wants_cost)

    def require_gpus(self, layouts: Sequence[Layout], num_gpus: int) -> None:
        """Raise ConfigError unless the largest replicas fit, and the smallest fill the rest."""
        sizes = [layout.num_gpus for layout in layouts]
        if num_gpus < max(sizes):
            raise ConfigError(
                f"--gpus {num_gpus}: the largest replicas have {max(sizes)} GPUs; choose {max(sizes)} or more, or "
                "plan with lower degrees"
            )
        if any(number % min(sizes) for number in (num_gpus, *sizes)):
            raise ConfigError(
                f"--gpus {num_gpus}: the smallest replicas have {min(sizes)} GPUs, which must divide it and the other "
                f"replicas, to fill the rest; choose a multiple of {min(sizes)}, or plan with other degrees, longer "
                "--groups or a lower --align"
            )


def _predicted_cost(load: Load) -> Cost:
    """Predict the cost of a micro-batch on one GPU; raise ConfigError if no model gives one."""
    from packer_cli.plan.core.cost import Cost

    profile = "--cost profile"
    model = load(profile).cost
    try:
        return Cost(quadratic=digits(model.quadratic), linear=digits(model.linear))
    except ValueError as error:
        raise ConfigError(
            f"{profile}: {error}; measure longer lengths with hbpack profile, or give --cost A,B"
        ) from None


def stage_rates(group: Group, model: GpuModel) -> Rates:
    """Return the seconds on a stage of a replica of the group per squared token, per token, and per micro-batch.

    Each is that of the stage that is slowest by it, so together they are never too low.
    """
    cost, memory = model.cost, model.memory
    cost.require_known(group.layout)
    fewest = memory.least_checkpoint_layers(group.capacity, group.layout)
    layers = group.checkpoint_layers or (memory.num_layers if fewest is None else fewest)
    of_stages = []
    for stage in cost.stages(group.layout):
        of_one = partial(cost.seconds, layout=group.layout, checkpoint_layers=layers, stage=stage)
        constant, square, token = (float(of_one(*one)) for one in ((0, 0), (1, 0), (0, 1)))
        of_stages.append((digits(square - constant), digits(token - constant), digits(constant)))
    quadratic, linear, constant = (max(each) for each in zip(*of_stages, strict=True))
    return quadratic, linear, constant


def digits(value: float) -> float:
    """Round to as many digits as mean something, and as are the same on every machine."""
    return float(f"{value:.6g}")


def take_strategy(name: str, thing: Any) -> Strategy:
    """Take the strategy that another package or a user brings, as an object or a class.

    Raises:
        TypeError, ValueError: it is none, or has another name.
    """
    if not (isinstance(thing, Strategy) or (isinstance(thing, type) and issubclass(thing, Strategy))):
        raise TypeError(f"it must be a Strategy, not {type(thing).__name__}")
    strategy = thing() if isinstance(thing, type) else thing
    missing = [each for each in ("name", "summary") if not getattr(strategy, each, "")]
    if missing:
        raise ValueError(f"it has no {missing[0]!r}")
    if strategy.name != name:
        raise ValueError(f"its name is {strategy.name!r}")
    return strategy
