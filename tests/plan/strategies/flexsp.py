"""Costs and batches for the tests of FlexSP."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from packer_cli.plan.core.cost import GroupCosts
from tests.naive import flexsp as naive


def both(costs: GroupCosts) -> tuple[GroupCosts, naive.Costs]:
    """The costs, and their twin."""
    rates = (values.tolist() for values in costs.rates[:3])
    return costs, naive.Costs(costs.gpus.tolist(), *rates, costs.capacity.tolist())


def make_costs(degrees, gpu_tokens, *, send=1e-6, constant=0.08, send_constant=0.008):
    """About those of an 8B model on H100s."""
    degrees = np.array(degrees)
    is_sent = degrees > 1
    return GroupCosts(
        gpus=degrees,
        quadratic=2.5e-9 / degrees,
        linear=1.3e-4 / degrees + is_sent * send,
        constant=constant + is_sent * send_constant,
        capacity=degrees * gpu_tokens,
    )


@st.composite
def any_costs(draw, most=8):
    """Costs of one to four degrees, not always cheaper per sample at a higher one."""
    degrees = sorted(draw(st.sets(st.integers(1, most), min_size=1, max_size=4)))
    numbers = st.integers(1, 40)
    size = {"min_size": len(degrees), "max_size": len(degrees)}
    return GroupCosts(
        gpus=degrees,
        quadratic=draw(st.lists(numbers, **size)),
        linear=draw(st.lists(numbers, **size)),
        constant=draw(st.lists(st.integers(0, 200), **size)),
        capacity=np.sort(draw(st.lists(st.integers(8, 40), **size))),
    )


def random_batch(seed):
    """(lengths, costs, GPUs) of a small batch: 4 to 14 samples of any spread, 30 to 95 % of the memory in use."""
    rng = np.random.default_rng(seed)
    num_gpus = int(rng.choice([4, 6, 8, 12, 16]))
    degrees = [1, 2, 4, 8, 16] if rng.random() < 0.6 else [1, 2, 3, 4, 6, 8, 12, 16]
    costs = make_costs([d for d in degrees if d <= num_gpus], 16_384, send=float(rng.choice([3e-7, 1e-6, 3e-6])))
    lengths = rng.lognormal(0, rng.uniform(0.3, 1.5), int(rng.integers(4, 15)))
    lengths *= rng.uniform(0.3, 0.95) * num_gpus * 16_384 / lengths.sum()
    return np.maximum(1, lengths).astype(np.int32), costs, num_gpus
