"""For the tests of packages that bring a packing or a strategy: what hbpack's own have to hold.

`check_packing` and `check_strategy` raise AssertionError with what is wrong; see docs/extending.md.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer_cli.config import PlanConfig, validate
from packer_cli.config.fields import require_declared
from packer_cli.config.groups import used_groups
from packer_cli.config.resolve import Resolved, resolve
from packer_cli.errors import ConfigError, HbpackError, PlanError
from packer_cli.plan.build import build_plan, check_rest, rest_of_epoch
from packer_cli.plan.core.check import check_pieces, check_plan
from packer_cli.plan.core.cut import make_pieces
from packer_cli.plan.core.types import Int32Array, Plan
from packer_cli.plan.figures import baseline_of, plan_stats
from packer_cli.plan.packing import REGISTRY, PackingAlgorithm, parse_packing
from packer_cli.plan.packing.registry import check_packs
from packer_cli.plan.strategies.protocol import Strategy
from packer_cli.plan.strategies.registry import STRATEGIES, find_strategy
from packer_cli.plan.warming import warm_up

_CASES: tuple[dict[str, Any], ...] = (
    {"groups": "4k:1", "gpus": 1},
    {"groups": "4k:1", "gpus": 8},
    {"groups": "1k:1,4k:4", "gpus": 8},
    {"groups": "512:1,2k:2,8k:8", "gpus": 8},
    {"groups": "4k:1", "gpus": 16, "parallel": "tp=2,cp=2,pp=2"},
    {"groups": "4k:2", "gpus": 8, "align": 16},
    {"groups": "4k:2", "gpus": 8, "epochs": 2, "seed": 5},
    {"groups": "4k:2", "gpus": 8, "max_samples": 3},
    {"groups": "4k:2", "gpus": 8, "mask": "causal"},
    {"groups": "4k:2", "gpus": 8, "global_tokens": "64k"},
    {"groups": "4k:2", "gpus": 8, "global_tokens": "64k", "lockstep": "1"},
    {"groups": "4k:2", "gpus": 8, "overflow": "truncate"},
)
"""Plan options; those that a strategy refuses are left out."""


def check_packing(packing: str | PackingAlgorithm | Callable[..., Any], *, seed: int = 0) -> None:
    """Prove an algorithm on lengths of many kinds: whole and valid packs, the same ones again, untouched lengths.

    Args:
        packing: as `--packing` names it, or as `plan(packing=...)` takes it.
        seed: of the lengths, and of the algorithm.

    Raises:
        AssertionError: it breaks a rule; the message says which, and on what.
        ConfigError: it is no packing.
    """
    try:
        algorithm, options = parse_packing(packing if isinstance(packing, str) else REGISTRY.add(packing), REGISTRY)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    for what, lengths, capacity in _lengths_to_pack(np.random.default_rng(seed)):
        try:
            offsets, order = algorithm.pack(lengths, capacity, seed, options)
            check_packs(offsets, order, lengths, capacity)
            again = algorithm.pack(lengths, capacity, seed, options)
        except (HbpackError, ValueError) as error:
            raise AssertionError(f"{what}: {error}") from error
        same = np.array_equal(offsets, again[0]) and np.array_equal(order, again[1])
        assert same, f"{what}: the same seed gives other packs the second time"


def check_strategy(strategy: str | Strategy | type[Strategy], **options: Any) -> None:
    """Prove a strategy on plans of many kinds: whole, the same ones again, dealt to other GPUs, beside its baseline.

    Args:
        strategy: its name, or an object or class.
        options: plan options that it needs in each plan, such as `global_tokens`, or `model` and `gpu`.

    Raises:
        AssertionError: it breaks a rule, or refuses every plan; the message says which, and on what.
        ConfigError: it is no strategy, or declares what is no plan option.
    """
    planner = find_strategy(strategy if isinstance(strategy, str) else STRATEGIES.add(strategy))
    require_declared(planner.name, PlanConfig.model_fields)
    refusals = []
    for case in _CASES:
        what = ", ".join(f"{name}={value}" for name, value in case.items())
        try:
            resolved = _resolved(planner, case | options)
        except ConfigError as error:
            refusals.append(str(error))
            continue
        try:
            _check_plans(resolved)
        except (HbpackError, AssertionError) as error:
            raise AssertionError(f"{what}: {error}") from error
    assert len(refusals) < len(_CASES), f"every plan that is tried is refused, such as: {refusals[0]}"


def _lengths_to_pack(random: np.random.Generator) -> Iterator[tuple[str, Int32Array, int]]:
    """Yield what the lengths are, the lengths, and the capacity."""
    few = {
        "no samples": ([], 16),
        "one sample": ([7], 16),
        "samples as long as the capacity": ([16] * 5, 16),
        "samples of one token": ([1] * 100, 16),
        "capacity 1": ([1] * 5, 1),
    }
    for what, (lengths, capacity) in few.items():
        yield what, np.array(lengths, dtype=np.int32), capacity
    for number in range(20):
        capacity = int(2 ** random.integers(1, 9))
        lengths_of = random.integers(1, capacity + 1, int(random.integers(1, 80)))
        yield f"uniform lengths {number}", lengths_of.astype(np.int32), capacity
    mixed = np.clip(random.lognormal(np.log(300), 1.2, 5_000), 1, 4096).astype(np.int32)
    yield "mixed lengths", mixed, 4096
    yield "totals over 2^31", np.full(2**13, 2**18 + 1, dtype=np.int32), 2**20


def _resolved(planner: Strategy, options: dict[str, Any]) -> Resolved:
    """Resolve the options with the groups that the strategy uses. Raises ConfigError if it refuses them."""
    options = {name: value for name, value in options.items() if name not in planner.ignores}
    groups = used_groups(validate(PlanConfig, options).groups, planner)
    return resolve(validate(PlanConfig, {**options, "groups": groups, "strategy": planner.name}))


def _check_plans(resolved: Resolved) -> None:
    request, overflow = resolved.request, resolved.config.overflow
    capacity = request.groups[-1].capacity
    for lengths in _lengths_to_plan(np.random.default_rng(0), capacity):
        pieces = make_pieces(lengths, None, capacity, overflow)
        plan = build_plan(pieces, request)
        check_plan(plan)
        check_pieces(plan.pieces, lengths, None, is_whole=overflow != "truncate")
        again = build_plan(pieces, request)
        assert _same(plan, again), "the same options give another plan the second time"
        plan_stats(plan, request)
        check_plan(baseline_of(plan, request).plan)
        _check_rest(plan, resolved)
    warm_up(request)
    try:
        pickle.dumps(request)
    except Exception as error:
        raise AssertionError(f"it cannot be sent to other processes, which plan, too: {error}") from error


def _lengths_to_plan(random: np.random.Generator, capacity: int) -> Iterator[Int32Array]:
    yield np.clip(random.lognormal(np.log(200), 1.5, 600), 1, 2 * capacity).astype(np.int32)
    yield np.full(40, capacity, dtype=np.int32)
    yield np.array([5], dtype=np.int32)


def _check_rest(plan: Plan, resolved: Resolved) -> None:
    """Deal the second half of the first epoch to as many GPUs, and to twice as many."""
    planner, schedule = resolved.request.strategy, plan.epochs[0]
    left, _ = rest_of_epoch(schedule, schedule.num_steps // 2)
    if not len(left):
        return
    for gpus in (plan.num_gpus, 2 * plan.num_gpus):
        try:
            planner.require_gpus([group.layout for group in plan.groups], gpus)
            request = resolved.changed(gpus=gpus).request
            check_rest(plan, planner.rest(plan, left, request, 0), left, gpus)
        except ConfigError:
            continue
        except PlanError as error:
            raise AssertionError(f"the rest of an epoch on {gpus} GPUs: {error}") from None


def _same(one: Plan, other: Plan) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(_arrays(one), _arrays(other), strict=True))


def _arrays(plan: Plan) -> Iterator[NDArray[Any]]:
    yield from (plan.pieces.sample, plan.pieces.start, plan.pieces.length)
    yield from vars(plan.packs).values()
    for schedule in plan.epochs:
        yield from vars(schedule).values()
