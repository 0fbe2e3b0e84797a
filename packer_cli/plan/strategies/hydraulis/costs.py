"""Seconds and capacity of a pipeline, by its parallel scheme: the one record that all parts of Hydraulis plan by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike, NDArray

from packer_cli.plan.types import Int64Array

Float64Array = NDArray[np.float64]

MOST_TOKENS = 2**31
"""No capacity reaches this, so that the attention work of a micro-batch fits int64."""


@dataclass(frozen=True, kw_only=True)
class SchemeCosts:
    """The time of a pipeline of each of k parallel schemes (tp, cp, pp), in any order.

    A micro-batch with samples of lengths s takes `quadratic sum(s^2) + linear sum(s) + constant` seconds on one of the
    scheme's `pp` stages, and holds at most `capacity` tokens. Its micro-batches take `sum t_j + (pp - 1) max t_j`.

    >>> costs = SchemeCosts(
    ...     gpus=[4, 4], pp=[1, 2], quadratic=[2, 1], linear=[8, 5], constant=[0, 1], capacity=[20, 10]
    ... )
    >>> costs.seconds(1, work=9, tokens=3).tolist()
    25.0
    """

    gpus: Int64Array
    """int64[k]: GPUs of a pipeline."""
    pp: Int64Array
    """int64[k]: pipeline stages."""
    quadratic: Float64Array
    """float64[k]: seconds per token^2 of attention work, sum of s^2, on one stage."""
    linear: Float64Array
    """float64[k]: seconds per token on one stage, communication included; above 0."""
    constant: Float64Array
    """float64[k]: seconds per micro-batch on one stage, whatever its contents."""
    capacity: Int64Array
    """int64[k]: most tokens of a micro-batch, and so of a sample."""
    enough: Int64Array | int = 1
    """int64[k]: mean tokens that a pipeline's micro-batches have at least, where these are not too many for one: GPUs
    are slower on fewer, which the rates do not say (the paper has 384 to 1,280 for tp 1 to 16)."""
    rates: Float64Array = field(init=False, repr=False)
    """float64[5, k]: `quadratic`, `linear`, `constant`, `pp - 1` and `enough`, as kernels take them."""

    def __post_init__(self) -> None:
        for name in ("gpus", "pp", "capacity"):
            object.__setattr__(self, name, np.ascontiguousarray(getattr(self, name), dtype=np.int64))
        for name in ("quadratic", "linear", "constant"):
            object.__setattr__(self, name, np.ascontiguousarray(getattr(self, name), dtype=np.float64))
        object.__setattr__(self, "enough", np.broadcast_to(np.asarray(self.enough, dtype=np.int64), self.gpus.shape))
        rates = (self.quadratic, self.linear, self.constant, self.pp - 1.0, np.asarray(self.enough) * 1.0)
        if not len(self) or any(len(values) != len(self) for values in (*rates, self.capacity)):
            raise ValueError("each of the schemes, at least one, needs its own costs and capacity")
        object.__setattr__(self, "rates", np.ascontiguousarray(rates))
        if (self.pp < 1).any() or (self.gpus < self.pp).any():
            raise ValueError(
                f"a scheme has at least 1 stage, and a GPU for each, got {self.pp.tolist()} stages on "
                f"{self.gpus.tolist()} GPUs"
            )
        if not (np.isfinite(self.rates).all() and (self.rates >= 0).all() and (self.linear > 0).all()):
            raise ValueError("costs must be finite and not negative, and each token must take time")
        if (np.asarray(self.enough) < 1).any():
            raise ValueError(f"enough tokens are at least 1, got {np.asarray(self.enough).tolist()}")
        if (self.capacity < 1).any() or (self.capacity >= MOST_TOKENS).any():
            raise ValueError(f"capacities must be at least 1 and below {MOST_TOKENS}, got {self.capacity.tolist()}")

    def __len__(self) -> int:
        return len(self.gpus)

    def seconds(self, kind: ArrayLike, work: ArrayLike, tokens: ArrayLike) -> Float64Array:
        """Seconds (float64) of micro-batches on one stage of schemes `kind`; arrays are broadcast.

        Args:
            kind: index of the scheme.
            work: sum of s^2 over the samples.
            tokens: sum of s.
        """
        quadratic, linear, constant, *_ = self.rates[:, np.asarray(kind)]
        return np.asarray(quadratic * work + linear * tokens + constant)

    def select(self, kinds: Sequence[int]) -> SchemeCosts:
        """These schemes alone, in this order."""
        chosen = np.asarray(kinds, dtype=np.int64)
        return SchemeCosts(
            gpus=self.gpus[chosen],
            pp=self.pp[chosen],
            quadratic=self.quadratic[chosen],
            linear=self.linear[chosen],
            constant=self.constant[chosen],
            capacity=self.capacity[chosen],
            enough=np.asarray(self.enough)[chosen],
        )

    @property
    def arrays(self) -> tuple[Float64Array, Int64Array]:
        """`(rates, capacity)`, as kernels take them."""
        return self.rates, self.capacity
