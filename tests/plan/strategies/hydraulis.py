"""Costs and steps for the tests of Hydraulis."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from packer_cli.plan.core.cost import GroupCosts
from packer_cli.plan.core.streams import rng_state
from packer_cli.plan.strategies.hydraulis.stage1 import Step
from packer_cli.plan.strategies.hydraulis.stage2 import StepPlan, divide, plan_step
from tests.naive import hydraulis as naive

FITTED = {
    (2, 1): (9.671, 20.545, 65.18), (4, 1): (5.648, 10.304, 56.70), (8, 1): (3.662, 5.069, 44.32),
    (16, 1): (2.923, 3.018, 65.24), (1, 2): (9.465, 13.724, 15.05), (2, 2): (4.907, 10.266, 31.87),
    (4, 2): (2.851, 5.162, 28.99), (8, 2): (1.847, 2.537, 22.98), (1, 4): (4.552, 9.555, 14.27),
    (2, 4): (2.499, 5.247, 17.47), (4, 4): (1.468, 2.579, 14.98), (1, 8): (2.376, 4.718, 7.74),
    (2, 8): (1.322, 2.615, 8.66),
}  # fmt: skip
"""Published fits of Hydraulis's code for a 7B model on A800s: (tp, pp) to ms a token * 100, ms a token^2 * 1e7, ms."""

_ACTIVATIONS = {1: 38, 2: 39, 4: 42, 8: 48, 16: 61}
"""Bytes a token, layer and hidden number on one of tp GPUs, as published."""


def longest_of(tp: int, pp: int, *, optimizer: tuple[int, int, int] = (8, 4, 1)) -> int:
    """Most tokens of a micro-batch of the 7B model on an A800, by Hydraulis's memory formula.

    Args:
        optimizer: (dp, tp, pp) by which the optimizer's states are divided, whatever the scheme.
    """
    layers, hidden, vocabulary, weight, share = 32, 4096, 30592, 210, 0.75
    odp, otp, opp = optimizer

    def of_vocabulary(stages: int) -> int:
        return 32 if stages == 1 else 16

    memory = (layers / opp) * (hidden**2 / otp) * weight * share / odp
    memory += (layers / pp) * (hidden**2 / tp) * weight * (1 - share)
    memory += (hidden * vocabulary / otp) * of_vocabulary(opp) * share / odp
    memory += (hidden * vocabulary / tp) * of_vocabulary(pp) * (1 - share)
    free = (81252 - 6 * 1024 - 5000) * 2**20 - memory
    return int(free / (layers * hidden / tp * _ACTIVATIONS[tp])) // 128 * 128


def fitted_costs(schemes: list[tuple[int, int]] | None = None) -> GroupCosts:
    """Costs of these (tp, pp), by default all of the table."""
    schemes = list(FITTED) if schemes is None else schemes
    linear, quadratic, constant = np.array([FITTED[scheme] for scheme in schemes]).T
    return GroupCosts(
        gpus=[tp * pp for tp, pp in schemes],
        pp=[pp for _, pp in schemes],
        quadratic=quadratic * 1e-10,
        linear=linear * 1e-5,
        constant=constant * 1e-3,
        capacity=[longest_of(*scheme) for scheme in schemes],
    )


def both(costs: GroupCosts) -> tuple[GroupCosts, naive.Costs]:
    """The costs, and their twin."""
    rates = (values.tolist() for values in costs.rates[:3])
    return costs, naive.Costs(costs.gpus.tolist(), costs.pp.tolist(), *rates, costs.capacity.tolist())


@st.composite
def any_costs(draw):
    """Costs of one to three schemes, not always cheaper on more GPUs."""
    num = draw(st.integers(1, 3))
    size = {"min_size": num, "max_size": num}
    pp = draw(st.lists(st.integers(1, 3), **size))
    return GroupCosts(
        gpus=[stages * draw(st.integers(1, 3)) for stages in pp],
        pp=pp,
        quadratic=draw(st.lists(st.integers(0, 10), **size)),
        linear=draw(st.lists(st.integers(1, 40), **size)),
        constant=draw(st.lists(st.integers(0, 100), **size)),
        capacity=draw(st.lists(st.integers(4, 40), **size)),
    )


def random_step(seed: int, most: int = 10) -> tuple[np.ndarray, np.ndarray, GroupCosts]:
    """(lengths, kinds, costs) of a small step: 3 to `most` samples of any spread on 1 to 3 pipelines."""
    rng = np.random.default_rng(seed)
    costs = fitted_costs()
    kinds = rng.integers(0, len(costs), int(rng.integers(1, 4)))
    lengths = rng.lognormal(rng.uniform(7, 9), rng.uniform(0.4, 1.5), int(rng.integers(3, most + 1)))
    return np.clip(lengths, 1, costs.capacity[kinds].max()).astype(np.int32), kinds, costs


def divided(falling: np.ndarray, costs: GroupCosts, kind: int) -> tuple[np.ndarray, float]:
    """(micro-batch of each sample, seconds) of a pipeline."""
    slot_of = np.zeros(len(falling), dtype=np.int64)
    return slot_of, divide(falling, costs.arrays, kind, slot_of)


def planned(lengths, kinds, costs: GroupCosts, *, seed: int = 0) -> StepPlan:
    """`plan_step` for samples and pipelines in any order."""
    kinds = np.array(kinds)
    by_length, by_capacity = np.argsort(-np.array(lengths), kind="stable"), np.argsort(-costs.capacity[kinds])
    falling = np.array(lengths, dtype=np.int64)[by_length]
    found = plan_step(Step(falling, kinds[by_capacity], costs.arrays), rng_state(seed))
    pipeline_of, slot_of = np.empty((2, len(falling)), dtype=np.int64)
    pipeline_of[by_length], slot_of[by_length] = by_capacity[found.pipeline_of], found.slot_of
    seconds = np.empty(len(kinds))
    seconds[by_capacity] = found.pipeline_seconds
    return StepPlan(pipeline_of, slot_of, seconds, found.seconds)
