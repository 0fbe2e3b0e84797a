"""Seconds and capacity of micro-batches by group of GPUs: what FlexSP and Hydraulis plan by."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from packer_cli.plan.core.types import Int64Array

Float64Array = NDArray[np.float64]

MOST_TOKENS = 2**31
"""No capacity reaches this, so that the attention work of a micro-batch fits int64."""


@dataclass(frozen=True, kw_only=True)
class GroupCosts:
    """The time of a micro-batch on each of k kinds of groups of GPUs.

    One with samples of lengths s takes `quadratic sum(s^2) + linear sum(s) + constant` seconds on one pipeline stage,
    and holds at most `capacity` tokens.
    """

    quadratic: Float64Array
    """float64[k]: seconds per token^2 of attention work, sum of s^2."""
    linear: Float64Array
    """float64[k]: seconds per token, communication included; above 0."""
    constant: Float64Array
    """float64[k]: seconds per micro-batch, whatever its contents."""
    capacity: Int64Array
    """int64[k]: most tokens of a micro-batch, and so of a sample."""
    rates: Float64Array = field(init=False, repr=False)
    """float64[.., k]: `quadratic`, `linear` and `constant`, and what a subclass adds, as kernels take them."""

    def __post_init__(self) -> None:
        for name in ("quadratic", "linear", "constant"):
            object.__setattr__(self, name, np.ascontiguousarray(getattr(self, name), dtype=np.float64))
        object.__setattr__(self, "capacity", np.ascontiguousarray(self.capacity, dtype=np.int64))
        rates = (self.quadratic, self.linear, self.constant, *self._more_rates())
        assert len(self)
        assert all(len(values) == len(self) for values in rates)
        object.__setattr__(self, "rates", np.ascontiguousarray(rates))
        assert np.isfinite(self.rates).all()
        assert (self.rates >= 0).all()
        assert (self.linear > 0).all()
        assert (self.capacity >= 1).all()
        assert (self.capacity < MOST_TOKENS).all()

    def _more_rates(self) -> tuple[Float64Array, ...]:
        return ()

    def __len__(self) -> int:
        return len(self.capacity)

    def seconds(self, kind: ArrayLike, work: ArrayLike, tokens: ArrayLike) -> Float64Array:
        """Seconds (float64) of micro-batches on one stage of groups of a kind; arrays are broadcast.

        Args:
            kind: index of the kind.
            work: sum of s^2 over the samples.
            tokens: sum of s.
        """
        quadratic, linear, constant, *_ = self.rates[:, np.asarray(kind)]
        return np.asarray(quadratic * work + linear * tokens + constant)

    def select(self, kinds: Any) -> Self:
        """These kinds alone, in this order: a slice, or an index array."""
        return type(self)(**{each.name: getattr(self, each.name)[kinds] for each in fields(self) if each.init})
