"""Plan options to the request that a strategy plans from: what is text in the options is parsed here, once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from packer_cli.config.plan_options import PlanConfig
from packer_cli.errors import ConfigError
from packer_cli.plan.core.attention_rates import AttentionRates, ShardingRule, parse_cp_sharding
from packer_cli.plan.core.cost import parse_cost, require_exact
from packer_cli.plan.core.groups import UNLIMITED
from packer_cli.plan.core.schedule import StepRules
from packer_cli.plan.core.windows import parse_curriculum
from packer_cli.plan.kernels.balance import parse_balance
from packer_cli.plan.packing import REGISTRY, PackingOptions, parse_packing
from packer_cli.plan.strategies.predict import digits
from packer_cli.plan.strategies.protocol import PlanRequest, Prediction, Question
from packer_cli.plan.strategies.registry import STRATEGIES

if TYPE_CHECKING:
    from packer_cli.cost.models import GpuModel


def with_known_cost(config: PlanConfig) -> PlanConfig:
    """The options with numbers instead of what predicts them, for these decide the plan and not where they are from.

    They are `--cost profile`, the attention times that `--cp-sharding auto` predicts with and, once the groups are
    known, what the strategy predicts.

    Raises:
        ConfigError, InputError, FormatError: `--profile`, or `--model` and `--gpu`, do not say what to predict with.
    """
    strategy = STRATEGIES[config.strategy]
    if config.group_costs is None:
        with _naming("--packing"):
            _, options = parse_packing(config.packing, strategy.packings() or REGISTRY)
        question = Question(
            groups=config.groups,
            num_gpus=config.gpus,
            parallel=config.parallel,
            packing_options=options,
            wants_cost=config.cost == "profile"
            or (strategy.predicts_cost and config.has_gpu_model and "cost" not in config.model_fields_set),
            has_model=config.has_gpu_model,
            load=partial(_load, config),
        )
        config = _with(config, strategy.predict(question))
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


def _with(config: PlanConfig, found: Prediction) -> PlanConfig:
    changes: dict[str, Any] = {"groups": found.groups}
    if found.rates is not None:
        changes["group_costs"] = found.rates
    if found.cost is not None:
        changes["cost"] = str(found.cost)
    if found.packing:
        options = ",".join(f"{name}={value}" for name, value in found.packing.items())
        changes["packing"] = f"{config.packing}{',' if ':' in config.packing else ':'}{options}"
    return config.model_copy(update=changes)


def _load(config: PlanConfig, what: str, *, for_memory: bool = False) -> GpuModel:
    from packer_cli.config.gpu_model import load_gpu_model, require_memory  # Only predictions need the cost model.

    if for_memory:
        require_memory(config, config.gpus)
    return load_gpu_model(config, config.gpus, what)


def plan_request(config: PlanConfig) -> PlanRequest:
    """The plan's form of the options, with a known cost.

    Raises:
        ConfigError: an unknown packing algorithm or option of it, or one that the groups or `--overflow` rule out; a
            balance or cost that is none.
    """
    strategy = STRATEGIES[config.strategy]
    algorithm, options = _packing(config)
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
        most = replace(longest, capacity=options.capacity(longest.capacity))
        require_exact(linear, (*config.groups, most), config.gpus)
    with _naming("--cp-sharding"):
        choice, rho = parse_cp_sharding(config.cp_sharding)
    pieces = config.attention_pieces
    attention = AttentionRates.measured(pieces) if pieces else AttentionRates.assumed(rho)
    with _naming("--curriculum"):
        windows = parse_curriculum(config.curriculum, config.groups[-1].capacity, config.curriculum_steps)
    steps = StepRules(
        global_tokens=config.global_tokens,
        curriculum_steps=0 if windows else config.curriculum_steps,
        mix=config.step_mix,
        windows=windows,
    )
    with _naming("--packing"):
        return PlanRequest(
            strategy=strategy,
            groups=config.groups,
            num_gpus=config.gpus,
            algorithm=algorithm,
            packing_options=options,
            steps=steps,
            epochs=config.epochs,
            seed=config.seed,
            balance=balance,
            fill=config.fill,
            linear=linear,
            lockstep=1 if config.lockstep == "1" else None,
            rates=config.group_costs,
            sharding=ShardingRule(choice=choice, rates=attention),
            mask=config.mask,
            max_samples=config.max_samples or UNLIMITED,
        )


def _packing(config: PlanConfig) -> tuple[Any, PackingOptions]:
    """The packing, one without effect where the strategy has none, and its options."""
    with _naming("--packing"):
        return parse_packing(config.packing, STRATEGIES[config.strategy].packings() or REGISTRY)


def refuse_padded(config: PlanConfig) -> None:
    """Raise ConfigError for a packing whose padded batches are only compared, or one that does not exist."""
    algorithm, _ = _packing(config)
    packing = config.packing
    if algorithm.is_padded:
        raise ConfigError(
            f"--packing {packing} makes padded batches, which hbpack only compares and never writes; run hbpack "
            f"compare --algorithms {packing}/none@longest, or give another packing, such as none for one sample a row"
        )


@contextmanager
def _naming(option: str) -> Iterator[None]:
    """Say which option a ValueError is about."""
    try:
        yield
    except ValueError as error:
        raise ConfigError(f"{option}: {error}") from None
