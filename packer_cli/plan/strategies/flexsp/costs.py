"""Seconds and capacity of a group of GPUs, by its degree: the one record that all parts of FlexSP plan by."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike, NDArray

from packer_cli.plan.types import Int64Array

Float64Array = NDArray[np.float64]

MOST_TOKENS = 2**31
"""No capacity reaches this, so that the attention work of a pack fits int64."""


@dataclass(frozen=True, kw_only=True)
class DegreeCosts:
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
    """int64[k]: GPUs of a group, increasing. Any integers of at least 1; powers of two need fewer process groups."""
    quadratic: Float64Array
    """float64[k]: seconds per token^2 of attention work, sum of s^2, of a group."""
    linear: Float64Array
    """float64[k]: seconds per token of a group, communication included; above 0."""
    constant: Float64Array
    """float64[k]: seconds per micro-batch, whatever its contents."""
    capacity: Int64Array
    """int64[k]: most tokens of a group; does not decrease with the degree."""
    rates: Float64Array = field(init=False, repr=False)
    """float64[3, k]: `quadratic`, `linear` and `constant`, as kernels take them."""

    def __post_init__(self) -> None:
        for name in ("degrees", "capacity"):
            object.__setattr__(self, name, np.ascontiguousarray(getattr(self, name), dtype=np.int64))
        for name in ("quadratic", "linear", "constant"):
            object.__setattr__(self, name, np.ascontiguousarray(getattr(self, name), dtype=np.float64))
        if not len(self.degrees) or self.degrees[0] < 1 or (np.diff(self.degrees) <= 0).any():
            raise ValueError(f"degrees must be at least 1 and increase, got {self.degrees.tolist()}")
        rates = (self.quadratic, self.linear, self.constant)
        if any(len(values) != len(self) for values in (*rates, self.capacity)):
            raise ValueError(f"each of the {len(self)} degrees needs its own costs and capacity")
        object.__setattr__(self, "rates", np.ascontiguousarray(rates))
        if not (np.isfinite(self.rates).all() and (self.rates >= 0).all() and (self.linear > 0).all()):
            raise ValueError("costs must be finite and not negative, and each token must take time")
        if self.capacity[0] < 1 or self.capacity[-1] >= MOST_TOKENS or (np.diff(self.capacity) < 0).any():
            raise ValueError(
                f"capacities must be at least 1, below {MOST_TOKENS}, and not decrease, got {self.capacity.tolist()}"
            )

    def __len__(self) -> int:
        return len(self.degrees)

    def seconds(self, kind: ArrayLike, work: ArrayLike, tokens: ArrayLike) -> Float64Array:
        """Seconds (float64) of groups of `degrees[kind]` GPUs; arrays are broadcast.

        Args:
            kind: index into `degrees`.
            work: sum of s^2 over the samples.
            tokens: sum of s.
        """
        quadratic, linear, constant = self.rates[:, np.asarray(kind)]
        return np.asarray(quadratic * work + linear * tokens + constant)

    @property
    def arrays(self) -> tuple[Int64Array, Float64Array, Int64Array]:
        """`(degrees, rates, capacity)`, as kernels take them."""
        return self.degrees, self.rates, self.capacity

    def up_to(self, num_gpus: int) -> DegreeCosts:
        """Only the degrees of at most `num_gpus` GPUs.

        Raises:
            ValueError: there is none.
        """
        last = int(np.searchsorted(self.degrees, num_gpus, side="right"))
        if not last:
            raise ValueError(f"{num_gpus} GPUs do not form a group of the least degree, {self.degrees[0]}")
        return DegreeCosts(
            degrees=self.degrees[:last],
            quadratic=self.quadratic[:last],
            linear=self.linear[:last],
            constant=self.constant[:last],
            capacity=self.capacity[:last],
        )

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
