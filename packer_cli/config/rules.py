"""Plan options to the typed rules of `packer_cli.plan`: what is text in the options is parsed here, once."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from packer_cli.config.plan_options import PlanConfig
from packer_cli.config.schemes import digits, find_schemes, stage_rates
from packer_cli.config.strategies import STRATEGIES
from packer_cli.errors import ConfigError
from packer_cli.plan.core.attention_rates import AttentionRates, ShardingRule, parse_cp_sharding
from packer_cli.plan.core.cost import Cost, linear_of_tokens, parse_cost, require_exact
from packer_cli.plan.core.groups import Group
from packer_cli.plan.core.schedule import StepRules
from packer_cli.plan.core.types import UNLIMITED
from packer_cli.plan.core.windows import parse_curriculum
from packer_cli.plan.kernels.balance import parse_balance
from packer_cli.plan.packing import REGISTRY, PackingAlgorithm, PackingOptions, parse_packing
from packer_cli.plan.rules import PlanRules
from packer_cli.plan.strategies.flexsp.costs import DegreeCosts
from packer_cli.plan.strategies.hydraulis.costs import SchemeCosts
from packer_cli.plan.strategies.wlb.packers import AUTO as AUTO_CAPACITY
from packer_cli.plan.strategies.wlb.packers import REGISTRY as STEP_PACKERS
from packer_cli.plan.strategies.wlb.packers import DelayOptions
from packer_cli.plan.strategies.wlb.rules import WlbRules

if TYPE_CHECKING:
    from packer_cli.cost.models import GpuModel, MemoryModel

_ENOUGH_TOKENS = 256, 128
"""See `SchemeCosts.enough`: of a micro-batch, and more for each GPU that shares it. Hydraulis's code has 384, 512,
768, 1,024 and 1,280 tokens for tp 1 to 16."""


def with_known_cost(config: PlanConfig) -> PlanConfig:
    """The options with numbers instead of what predicts them, for these decide the plan and not where they are from.

    They are `--cost profile`, the attention times that `--cp-sharding auto` predicts with and, once the groups are
    known, `group_costs` or, for `wlb`, the cost of a pipeline stage and the tokens that memory holds; a group of a
    degree without a cost, which the model's heads do not allow, is left out.

    Raises:
        ConfigError, InputError, FormatError: `--profile`, or `--model` and `--gpu`, do not say what to predict with.
    """
    if STRATEGIES[config.strategy].has_packers:
        config = _with_known_steps(config)
    elif config.cost == "profile":
        model = _load(config, "--cost profile").cost
        try:
            cost = Cost(quadratic=digits(model.quadratic), linear=digits(model.linear))
        except ValueError as error:
            raise ConfigError(
                f"--cost profile: {error}; measure longer lengths with hbpack profile, or give --cost A,B"
            ) from None
        config = config.model_copy(update={"cost": str(cost)})
    if config.strategy == "flexsp" and not config.is_auto and config.group_costs is None:
        gpu_model = _load(config, "--strategy flexsp")
        longest = config.groups[-1]
        groups = [group for group in config.groups if group.sp_size in (1, longest.sp_size, *gpu_model.cost.send)]
        costs = tuple(stage_rates(group, gpu_model) for group in groups)
        config = config.model_copy(update={"groups": tuple(groups), "group_costs": costs})
    if config.strategy == "hydraulis" and not config.is_auto and config.group_costs is None:
        gpu_model = _load(config, "--strategy hydraulis", for_memory=True)
        longest = config.groups[-1]
        schemes = find_schemes(longest.capacity, config.gpus, gpu_model, config.parallel, longest.sp_size)
        groups = [scheme.group for scheme in schemes]
        costs = tuple(scheme.rates for scheme in schemes)
        config = config.model_copy(update={"groups": tuple(groups), "group_costs": costs})
    has_cp = config.layout.cp > 1 or any(group.cp_size > 1 for group in config.groups)
    if has_cp and config.cp_sharding == "auto" and config.profile is not None and config.attention_pieces is None:
        from packer_cli.config.gpu_model import read_profile

        pieces = tuple((row.queries, row.keys, digits(row.seconds)) for row in read_profile(config.profile).pieces)
        config = config.model_copy(update={"attention_pieces": pieces or None})
    if any(linear <= 0 for _, linear, _ in config.group_costs or ()):
        raise ConfigError(
            f"--strategy {config.strategy} needs the time of a token, and the rows of the profile give none besides "
            "that of attention; measure shorter lengths with hbpack profile, or give --model and --gpu"
        )
    return config


def _with_known_steps(config: PlanConfig) -> PlanConfig:
    """A cost predicted for the whole replica, and the most tokens of a micro-batch, where the options say nothing."""
    is_predicted = config.cost == "profile" or (config.has_gpu_model and "cost" not in config.model_fields_set)
    with _naming("--packing"):
        _, options = parse_packing(config.packing, STEP_PACKERS)
    has_room = isinstance(options, DelayOptions) and options.s_max == AUTO_CAPACITY
    if config.is_auto or not (is_predicted or (has_room and config.has_gpu_model)):
        return config
    model = _load(config, f"--strategy {config.strategy}", for_memory=has_room)
    group, changes = config.groups[-1], {}
    if has_room:
        capacity = _most_tokens(group, model.memory)
        separator = "," if ":" in config.packing else ":"
        changes["packing"] = f"{config.packing}{separator}s_max={capacity}"
        group = replace(group, capacity=capacity)
    if is_predicted:
        quadratic, linear, _ = stage_rates(group, model)
        with _naming("--cost"):
            changes["cost"] = str(Cost(quadratic=quadratic, linear=linear))
    return config.model_copy(update=changes)


_ROOM = 5 / 4
"""Windows that a micro-batch should hold at least: with less, long samples leave no room to even out."""


def _most_tokens(window: Group, memory: MemoryModel) -> int:
    """Tokens of a micro-batch that memory holds, from one context window to two.

    Layers are checkpointed for `_ROOM` windows and for no more, as each costs every micro-batch time.
    """
    layers = window.checkpoint_layers or memory.least_checkpoint_layers(_ROOM * window.capacity, window.layout)
    multiple = math.lcm(window.align, window.layout.row_multiple)
    longest = memory.longest(window.layout, layers) // multiple * multiple
    return max(window.capacity, min(2 * window.capacity, longest))


def _load(config: PlanConfig, what: str, *, for_memory: bool = False) -> GpuModel:
    from packer_cli.config.gpu_model import load_gpu_model, require_memory  # Only predictions need the cost model.

    if for_memory:
        require_memory(config, config.gpus)
    return load_gpu_model(config, config.gpus, what)


def plan_rules(config: PlanConfig) -> PlanRules:
    """The plan's form of the options, with a known cost.

    Raises:
        ConfigError: an unknown packing algorithm or option of it, or one that the groups or `--overflow` rule out; a
            balance or cost that is none.
    """
    algorithm, options, wlb = _packing(config)
    if algorithm.needs_split and config.overflow != "split":
        raise ConfigError(
            f"--packing: packing {algorithm.name!r} cuts what is longer than the greatest capacity, so it needs "
            f"--overflow split, not {config.overflow}; give that, or packing bfd"
        )
    with _naming("--balance"):
        balance = parse_balance(config.balance)
    with _naming("--cost"):
        linear = parse_cost(config.cost).linear_tokens
        longest = config.groups[-1]
        most = () if wlb is None else (replace(longest, capacity=wlb.capacity(longest.capacity)),)
        require_exact(linear, (*config.groups, *most), config.gpus)
    with _naming("--cp-sharding"):
        choice, rho = parse_cp_sharding(config.cp_sharding)
    pieces = config.attention_pieces
    rates = AttentionRates.measured(pieces) if pieces else AttentionRates.assumed(rho)
    with _naming("--curriculum"):
        windows = parse_curriculum(config.curriculum, config.groups[-1].capacity, config.curriculum_steps)
    steps = StepRules(
        global_tokens=config.global_tokens,
        curriculum_steps=0 if windows else config.curriculum_steps,
        mix=config.step_mix,
        windows=windows,
    )
    with _naming("--packing"):
        rules = PlanRules(
            groups=config.groups,
            num_gpus=config.gpus,
            algorithm=algorithm.with_linear(
                linear if config.mask == "document" else linear_of_tokens(config.groups, config.gpus)
            ),
            packing_options=options,
            steps=steps,
            epochs=config.epochs,
            seed=config.seed,
            balance=balance,
            fill=config.fill,
            linear=linear,
            lockstep=1 if config.lockstep == "1" else None,
            **_group_costs(config),  # type: ignore[arg-type]
            sharding=ShardingRule(choice=choice, rates=rates),
            mask=config.mask,
            max_samples=config.max_samples or UNLIMITED,
            wlb=wlb,
        )
    return rules


def _packing(config: PlanConfig) -> tuple[PackingAlgorithm, PackingOptions, WlbRules | None]:
    """The packing, and the rules of a strategy whose packers fill whole steps."""
    if not STRATEGIES[config.strategy].has_packers:
        with _naming("--packing"):
            return *parse_packing(config.packing, REGISTRY), None
    with _naming("--packing"):
        packer, step_options = parse_packing(config.packing, STEP_PACKERS)
    without_effect = REGISTRY["bfs"]
    return without_effect, without_effect.options(), WlbRules(packer=packer, options=step_options)


def refuse_padded(config: PlanConfig) -> None:
    """Raise ConfigError for a packing whose padded batches are only compared, or one that does not exist."""
    algorithm, _, _ = _packing(config)
    packing = config.packing
    if algorithm.is_padded:
        raise ConfigError(
            f"--packing {packing} makes padded batches, which hbpack only compares and never writes; run hbpack "
            f"compare --algorithms {packing}/none@longest, or give another packing, such as none for one sample a row"
        )


def _group_costs(config: PlanConfig) -> dict[str, DegreeCosts | SchemeCosts]:
    """What a strategy that predicts the time of its groups plans by, as the field of `PlanRules`."""
    if config.group_costs is None:
        return {}
    quadratic, linear, constant = np.array(config.group_costs).T
    gpus, capacity, pp, of_stage = np.array(
        [(group.num_gpus, group.capacity, group.pp_size, group.layout.stage_gpus) for group in config.groups]
    ).T
    if not STRATEGIES[config.strategy].plans_steps:
        costs = DegreeCosts(degrees=gpus, quadratic=quadratic, linear=linear, constant=constant, capacity=capacity)
        return {"replica_costs": costs}
    once, each = _ENOUGH_TOKENS
    schemes = SchemeCosts(
        gpus=gpus, pp=pp, quadratic=quadratic, linear=linear, constant=constant, capacity=capacity,
        enough=once + each * of_stage,
    )  # fmt: skip
    return {"scheme_costs": schemes}


@contextmanager
def _naming(option: str) -> Iterator[None]:
    """Say which option a ValueError is about."""
    try:
        yield
    except ValueError as error:
        raise ConfigError(f"{option}: {error}") from None
