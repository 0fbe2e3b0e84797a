"""Seconds and capacity of a group of GPUs, by its degree: the one record that all parts of FlexSP plan by."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from packer_cli.plan.core.cost import GroupCosts
from packer_cli.plan.core.types import Float64Array, Int64Array
from packer_cli.plan.strategies.protocol import PlanRequest


@dataclass(frozen=True, kw_only=True)
class DegreeCosts(GroupCosts):
    """The time of a micro-batch on a group of GPUs, for k degrees (FlexSP, arXiv 2412.01523, section 4.1).

    A group of degree d with samples of lengths s takes `quadratic sum(s^2) + linear sum(s) + constant` seconds and
    holds at most `capacity` tokens. From a `cost.models.CostModel` with n of L layers checkpointed,
    `again = 1 + recompute n / L` and `resend = 1 + resend n / L`::

        quadratic = cost.quadratic * again / d
        linear    = cost.linear * again / d + cost.send[d] * resend        (no send at d = 1)
        constant  = cost.constant + cost.send_constant                     (no send at d = 1)
        capacity  = d * tokens that fit one GPU

    >>> costs = DegreeCosts(degrees=[1, 2], quadratic=[2, 1], linear=[8, 5], constant=[0, 1], capacity=[10, 20])
    >>> costs.seconds(1, work=9, tokens=3).tolist()
    25.0
    """

    degrees: Int64Array
    """int64[k]: GPUs of a group, increasing. Any integers of at least 1; powers of two need fewer process groups.
    Capacities do not decrease with them."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "degrees", np.ascontiguousarray(self.degrees, dtype=np.int64))
        super().__post_init__()
        assert len(self.degrees) == len(self)
        assert self.degrees[0] >= 1
        assert (np.diff(self.degrees) > 0).all()
        assert (np.diff(self.capacity) >= 0).all()

    @property
    def arrays(self) -> tuple[Int64Array, Float64Array, Int64Array]:
        """`(degrees, rates, capacity)`, as kernels take them."""
        return self.degrees, self.rates, self.capacity

    def up_to(self, num_gpus: int) -> DegreeCosts:
        """Only the degrees of at most `num_gpus` GPUs, of which there is one at least."""
        last = int(np.searchsorted(self.degrees, num_gpus, side="right"))
        return self.select(slice(last))

    def gpu_seconds(self, lengths: NDArray[np.integer], limit: float = np.inf) -> tuple[Int64Array, Float64Array]:
        """`(kind int64[n], GPU-seconds float64[n])` of each length at the degree where these are least.

        Counts a sample's share of the constant as if its pack were full; no sample takes less in any plan. Ties go to
        the lower degree. Samples longer than every capacity have kind -1 and infinite seconds. O(n k).

        Args:
            limit: seconds; a sample that takes longer alone gets a degree where it does not, else the fastest one.
        """
        length = np.asarray(lengths, dtype=np.float64)
        kind, fastest = np.full((2, len(length)), -1, dtype=np.int64)
        least, alone, of_fastest = np.full((3, len(length)), np.inf)
        for k, degree in enumerate(self.degrees.tolist()):
            own = (self.quadratic[k] * length + self.linear[k]) * length
            taken = degree * (own + self.constant[k] / self.capacity[k] * length)
            seconds = np.where(length <= self.capacity[k], own + self.constant[k], np.inf)
            faster = seconds < alone
            fastest[faster], alone[faster], of_fastest[faster] = k, seconds[faster], taken[faster]
            cheaper = (taken < least) & (seconds <= min(limit, np.finfo(np.float64).max))
            kind[cheaper], least[cheaper] = k, taken[cheaper]
        over = kind < 0
        return np.where(over, fastest, kind), np.where(over, of_fastest, least)


def degree_costs(request: PlanRequest) -> DegreeCosts:
    """Of the groups of a request, which has the rates."""
    assert request.rates is not None
    quadratic, linear, constant = np.array(request.rates).T
    gpus, capacity = np.array([(group.num_gpus, group.capacity) for group in request.groups]).T
    return DegreeCosts(degrees=gpus, quadratic=quadratic, linear=linear, constant=constant, capacity=capacity)
