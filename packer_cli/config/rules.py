"""Plan options to the typed rules of `packer_cli.plan`: what is text in the options is parsed here, once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from packer_cli.config.models import PlanConfig
from packer_cli.errors import ConfigError
from packer_cli.plan.balance import parse_balance
from packer_cli.plan.cost import Cost, parse_cost, require_exact
from packer_cli.plan.packing import REGISTRY, parse_packing
from packer_cli.plan.rules import PlanRules
from packer_cli.plan.schedule import StepRules


def with_known_cost(config: PlanConfig) -> PlanConfig:
    """The options with numbers in the place of `--cost profile`, for they decide the plan and not where they are from.

    Raises:
        ConfigError, InputError, FormatError: `--profile`, or `--model` and `--gpu`, do not say what to predict with.
    """
    if config.cost != "profile":
        return config
    from packer_cli.config.gpu_model import load_gpu_model  # Only predictions need the cost model.

    model = load_gpu_model(config, config.gpus, "--cost profile").cost
    try:
        # As many digits as mean something, and as are the same on every machine.
        cost = Cost(quadratic=float(f"{model.quadratic:.6g}"), linear=float(f"{model.linear:.6g}"))
    except ValueError as error:
        raise ConfigError(f"--cost profile: {error}") from None
    return config.model_copy(update={"cost": str(cost)})


def plan_rules(config: PlanConfig) -> PlanRules:
    """The plan's form of the options, with a known cost.

    Raises:
        ConfigError: an unknown packing algorithm or option of it, or one that the groups or `--overflow` rule out; a
            balance or cost that is none.
    """
    with _naming("--packing"):
        algorithm, options = parse_packing(config.packing, REGISTRY)
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
    steps = StepRules(
        global_tokens=config.global_tokens, curriculum_steps=config.curriculum_steps, mix=config.step_mix
    )
    with _naming("--packing"):
        rules = PlanRules(
            groups=config.groups,
            num_gpus=config.gpus,
            algorithm=algorithm.with_linear(linear),
            packing_options=options,
            steps=steps,
            epochs=config.epochs,
            seed=config.seed,
            balance=balance,
            fill=config.fill,
            linear=linear,
        )
    return rules


@contextmanager
def _naming(option: str) -> Iterator[None]:
    """Say which option a ValueError is about."""
    try:
        yield
    except ValueError as error:
        raise ConfigError(f"{option}: {error}") from None
