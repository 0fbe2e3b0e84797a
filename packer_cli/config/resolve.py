"""The way from plan options to the request of numbers that a strategy plans from; no other module reads their text."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from packer_cli.config.fields import OF_AUTO
from packer_cli.config.messages import TreesError, option_name
from packer_cli.config.plan_options import PlanConfig
from packer_cli.config.plan_record import PlannedConfig
from packer_cli.errors import ConfigError
from packer_cli.format.layout import Layout
from packer_cli.plan.core.attention_rates import AttentionRates, ShardingRule, parse_cp_sharding
from packer_cli.plan.core.cost import parse_cost, require_exact
from packer_cli.plan.core.groups import UNLIMITED, Group, SizeRule, read_limits, require_aligned
from packer_cli.plan.core.schedule import StepRules
from packer_cli.plan.kernels.balance import parse_balance
from packer_cli.plan.packing import REGISTRY, parse_packing
from packer_cli.plan.strategies.protocol import PlanRequest, Strategy, digits
from packer_cli.plan.strategies.registry import PACKED, STRATEGIES, find_strategy

if TYPE_CHECKING:
    from packer_cli.cost.predict import GpuModel


@dataclass(frozen=True, kw_only=True)
class Resolved:
    """The options of one plan."""

    given: PlanConfig
    """Options as the user gave them."""
    config: PlannedConfig
    """Options as the plan's file holds them."""
    request: PlanRequest
    """Options as the strategy takes them."""

    def changed(self, **changes: Any) -> Resolved:
        """Return these options with other values of some."""
        return build(self.config.model_copy(update=changes), self.given)

    def noting(self, **facts: Any) -> Resolved:
        """Return these options with other facts in the plan's file, which change nothing of the request."""
        return replace(self, config=self.config.model_copy(update=facts))

    def why_not(self, strategy: Strategy) -> TreesError | None:
        """Return the error of another strategy that does not plan samples that share prefixes, where these do."""
        if not self.request.limits or "max_path_tokens" in strategy.supports:
            return None
        able = ", ".join(name for name in PACKED if "max_path_tokens" in STRATEGIES[name].supports)
        why = "cannot pack samples that share prefixes"
        return TreesError(f"--strategy {strategy.name}", why, f"choose one of {able}")

    def refusal(self) -> TreesError | None:
        """Return the error of the first option that does not go with shared prefixes; None where all go."""
        config, request = self.config, self.request
        algorithm = request.algorithm
        if not request.limits:
            return None
        if refusal := self.why_not(request.strategy):
            return refusal
        if algorithm.cut is not None or algorithm.is_padded:
            why = f"would {'cut' if algorithm.cut is not None else 'pad'} samples that share prefixes"
            return TreesError(f"--packing {config.packing}", why, "choose another, such as isf")
        if any(group.cp_size > 1 for group in request.groups):
            why = "would divide what a token sees among GPUs"
            return TreesError("--parallel cp", why, "share rows with SP degrees in --groups instead")
        if any(group.align > 1 for group in request.groups):
            return TreesError("--align", "would pad shared prefixes", "leave it out")
        if config.mask != "document":
            return TreesError(f"--mask {config.mask}", "would let an answer or a turn see the others", "leave it out")
        return None


def resolve(given: PlanConfig, unit: str | None = None, names: Collection[str] = ()) -> Resolved:
    """Replace the models that predict by their numbers, and read the options that are text.

    Args:
        given: the options; where `auto` has not chosen groups yet, any groups stand for them, to check the others by.
        unit: see `PlanConfig.for_unit`; None where it is not known yet: with a limit on path tokens, "item".
        names: options that the user gave, besides those of which the options themselves say so.

    Raises:
        ConfigError, InputError, FormatError: an option does not fit the others or the samples, or `--profile`, or
            `--model` and `--gpu`, do not give what predictions need.
    """
    has_limit = given.max_path_tokens is not None
    if unit == "sample" and has_limit and "max_path_tokens" in given.names_given().union(names):
        raise ConfigError(
            f"--max-path-tokens {given.max_path_tokens} has no effect: no samples of this set share a prefix, so "
            "there are no path tokens to limit; leave it out"
        )
    if has_limit or unit == "item":
        given = given.for_unit(unit)
    if not given.groups:
        given = _with_any_groups(given)
    resolved = build(given if isinstance(given, PlannedConfig) else _predicted(given), given)
    if resolved.request.limits and (refusal := resolved.refusal()):
        raise refusal
    return resolved


def _predicted(given: PlanConfig) -> PlannedConfig:
    """Put numbers in place of what predicts them."""
    strategy = find_strategy(given.strategy)
    with _naming("--packing"):
        parse_packing(given.packing, strategy.packings())
    if (given.model or (given.profile and given.lockstep not in ("all", "1"))) and not strategy.finds_layouts:
        model = load_model(given, "--model")
        for group in given.groups:
            model.cost.require_known(group.layout)
    gives_way = "cost" in strategy.defaults and "cost" not in given.model_fields_set and given.has_gpu_model
    with strategy.blamed():
        found = strategy.predict(given, partial(load_model, given), gives_way or given.cost == "profile")
    if any(linear <= 0 for _, linear, _ in found.get("group_costs", ())):
        raise ConfigError(
            f"--strategy {given.strategy} needs the time of a token, and the rows of the profile give none besides "
            "that of attention; measure shorter lengths with hbpack profile, or give --model and --gpu"
        )
    found["attention_pieces"] = _attention_pieces(given, found["groups"]) if given.profile else None
    return PlannedConfig.model_construct(given.model_fields_set, **{**dict(given), **found})


def _with_any_groups(given: PlanConfig) -> PlanConfig:
    """Give the options groups with which the others can be checked, before `auto` chooses for the samples."""
    if "a stream" not in given.planner.needs:
        from packer_cli.config.gpu_model import load_models  # Only predictions need the cost model.

        load_models(given, "--groups auto")
    return given.with_groups((Group(capacity=1024), Group(capacity=8192))[: given.max_groups])


def size_rule(config: PlanConfig) -> SizeRule:
    """Make the rule for sizes: the limits on samples, and the fate of samples over them."""
    return SizeRule(config.groups[-1].capacity, config.overflow, read_limits(config.max_path_tokens))


def require_plan(config: PlanConfig, given: Collection[str] | None = None) -> None:
    """Raise ConfigError for options whose plan is only compared, and for one that was given and changes nothing.

    Args:
        given: names of fields; None for the fields that the options say were given. A plan that was read names all.
    """
    strategy, packing = find_strategy(config.strategy), config.packing
    if not strategy.is_packed:
        raise ConfigError(
            f"--strategy {config.strategy} shows what other code does ({strategy.summary}), and hbpack only "
            f"compares it; run hbpack compare --strategies {config.strategy}, or give another strategy"
        )
    algorithm = REGISTRY.get(packing.partition(":")[0])
    if algorithm is not None and algorithm.is_padded:
        raise ConfigError(
            f"--packing {packing} makes padded batches, which hbpack only compares and never writes; run hbpack "
            f"compare --algorithms {packing}/none@longest, or give another packing, such as none for one sample a row"
        )
    found = without_effect(config, with_parts=True)
    for option in sorted(found.keys() & set(config.model_fields_set if given is None else given)):
        raise ConfigError(f"{option_name(option)} {found[option]}")


def require_use(config: PlanConfig, rows: Iterable[PlanConfig]) -> None:
    """Raise ConfigError for an option that was given and changes none of the plans that are compared.

    Args:
        rows: the options of each plan.
    """
    found = [without_effect(row, was_auto=not config.groups) for row in rows]
    for option in sorted(config.model_fields_set.intersection(*found)):
        raise ConfigError(f"{option_name(option)} {found[0][option]}")


def without_effect(config: PlanConfig, *, was_auto: bool = False, with_parts: bool = False) -> dict[str, str]:
    """Find the options that change nothing, given or not, each with the words of a message after its name.

    Args:
        was_auto: whether `auto` chose the groups.
        with_parts: whether to find options, too, of whose value a part changes nothing.
    """
    strategy = find_strategy(config.strategy)
    own_way = f"has no effect on --strategy {config.strategy}, which packs in its own way; leave it out"
    found = dict.fromkeys(strategy.ignores, own_way)
    if not _has_cp(config.parallel, config.groups) and not strategy.finds_layouts:
        found["cp_sharding"] = "has no effect without context parallelism; give --parallel cp=N, or leave it out"
    if config.groups:
        if not was_auto:
            found |= dict.fromkeys(OF_AUTO, "has no effect with named --groups; give --groups auto, or leave it out")
        if len(config.groups) == 1:
            why = "has no effect with one length group: there are no shorter ones to fill its packs; leave it out"
            found.setdefault("fill", why)
    elif "a stream" in strategy.needs:
        why = f"has no effect on --strategy {config.strategy}, whose one group is the context window; leave it out"
        found |= dict.fromkeys(OF_AUTO - {"max_length"}, why)
    found |= strategy.without_effect(config)
    order, plus, _ = config.balance.partition("+")
    has_one_replica = bool(config.groups) and all(group.num_dp_ranks(config.gpus) == 1 for group in config.groups)
    if has_one_replica and config.balance.endswith("refine"):
        why = (
            f"refine exchanges samples between replicas, and there is one; give --balance {order if plus else 'sort'}"
        )
        found.setdefault("balance", f"{config.balance}: {why}")
    if with_parts:
        return found
    return {name: why for name, why in found.items() if not why.startswith(f"{getattr(config, name)}: ")}


def _has_cp(parallel: Layout | None, groups: Iterable[Group]) -> bool:
    return (parallel is not None and parallel.cp > 1) or any(group.cp_size > 1 for group in groups)


def load_model(config: PlanConfig, what: str, *, for_memory: bool = False) -> GpuModel:
    """Load the GPU model of a plan; raise the errors of `load_gpu_model`."""
    from packer_cli.config.gpu_model import load_gpu_model  # Only predictions need the cost model.

    model = load_gpu_model(config, config.gpus, what, config.lockstep, for_memory=for_memory)
    return model.of_lockstep(config.lockstep)


def _attention_pieces(config: PlanConfig, groups: Sequence[Group]) -> tuple[tuple[int, int, float], ...] | None:
    """Read the times of attention of the profile's pieces, if `--cp-sharding` auto or static asks for them."""
    if not _has_cp(config.parallel, groups) or config.cp_sharding not in ("auto", "static"):
        return None
    from packer_cli.config.gpu_model import read_profile

    assert config.profile is not None
    return tuple((row.queries, row.keys, digits(row.seconds)) for row in read_profile(config.profile).pieces) or None


def build(config: PlannedConfig, given: PlanConfig | None = None) -> Resolved:
    """Make the request from options whose predictions are numbers already, as a plan's file has them.

    Args:
        given: options that stand for the config's where other plans are made, see `PlanConfig.with_others`.
    """
    if config.packages:
        config.require_package("strategy", STRATEGIES)
        config.require_package("packing", REGISTRY)
    strategy, lockstep = find_strategy(config.strategy), None if config.lockstep == "all" else int(config.lockstep)
    if lockstep not in (None, 1):
        fits = (lockstep % each.num_gpus == 0 and each.tp_size * each.pp_size == 1 for each in config.groups)
        if strategy.mixes_layouts or config.gpus % lockstep or not all(fits):
            raise ConfigError(
                f"--lockstep {lockstep}: so many GPUs must divide the {config.gpus} GPUs, and hold whole replicas of "
                f"SP or CP ranks, all alike; give all or 1, or a multiple of {lockstep} GPUs"
            )
    with _naming("--packing"):
        algorithm, options = parse_packing(config.packing, strategy.packings())
    if algorithm.needs_split and config.overflow != "split":
        raise ConfigError(
            f"--packing: packing {algorithm.name!r} cuts what is longer than the greatest capacity, so it needs "
            f"--overflow split, not {config.overflow}; give that, or packing bfd"
        )
    with _naming("--balance"):
        balance = parse_balance(config.balance)
    with _naming("--cost"):
        linear = parse_cost(config.cost).linear_tokens
        require_exact(linear, config.groups, config.gpus)
    with _naming("--cp-sharding"):
        choice, rho = parse_cp_sharding(config.cp_sharding)
    pieces = config.attention_pieces
    attention = AttentionRates.measured(pieces) if pieces else AttentionRates.assumed(rho)
    steps = StepRules(
        global_tokens=config.global_tokens,
        curriculum_steps=config.curriculum_steps,
        mix=config.step_mix,
        longest_first=any(group.pp_size > 1 for group in config.groups),
    )
    with _naming("--packing"):
        request = PlanRequest(
            strategy=strategy,
            groups=config.groups,
            num_gpus=config.gpus,
            algorithm=algorithm,
            packing_options=options,
            steps=strategy.step_rules(steps, balance),
            epochs=config.epochs,
            seed=config.seed,
            balance=balance,
            fill=config.fill,
            linear=linear,
            lockstep=lockstep,
            rates=config.group_costs,
            sharding=ShardingRule(choice=choice, rates=attention),
            mask=config.mask,
            max_samples=config.max_samples or UNLIMITED,
            limits=read_limits(config.max_path_tokens),
        )
        for group in config.groups:
            require_aligned(group)
        strategy.check(request)
    brought = {"strategy": STRATEGIES.package(config.strategy)}
    if strategy.packings() is REGISTRY:
        brought["packing"] = REGISTRY.package(algorithm.name)
    packages = {option: package for option, package in brought.items() if package is not None}
    config = config.model_copy(update={"packages": packages or None})
    return Resolved(given=given or config, config=config, request=request)


@contextmanager
def _naming(option: str) -> Iterator[None]:
    """Name the option in the ConfigError that a ValueError of the block becomes."""
    try:
        yield
    except ValueError as error:
        raise ConfigError(f"{option}: {error}") from None
