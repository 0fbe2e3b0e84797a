"""The work of packs: attention costs the square of each sample's length (not the pack's), the rest its length.

A micro-batch takes `a sum(s^2) + b sum(s)` (WLB-LLM, arXiv 2503.17924, eq. 2; Hydraulis, arXiv 2412.07894): matrix
products, element-wise operators and collectives grow with the tokens. HBP balances only the first term. Balance
depends only on b / a, so a plan can count in integers: a sample's *work* is `s (s + linear)`, where `linear` is b / a
in tokens, the length at which both terms cost the same. With `linear` 0, work is attention work.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from packer_cli.plan.core.groups import Group
from packer_cli.plan.core.types import Float64Array, Int64Array, blocks_of
from packer_cli.sizes import parse_number

QUADRATIC = "quadratic"
MOST_WORK = 2**62
"""Every sum of work must be less, so that twice the work of a pack fits int64."""
_MOST_LINEAR = 2**31
_BLOCK = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Predicted cost of a micro-batch, `quadratic * sum(s^2) + linear * sum(s)`, in any unit."""

    quadratic: float = 1.0
    """Cost per token^2 of attention work: a, above 0."""
    linear: float = 0.0
    """Cost per token: b, at least 0. A larger one evens out tokens rather than squares."""

    def __post_init__(self) -> None:
        if not (0 < self.quadratic < math.inf and 0 <= self.linear < math.inf):
            raise ValueError(f"cost A,B needs an A above 0 and a B of at least 0, got {self}")
        if not self.linear / self.quadratic < _MOST_LINEAR - 1:
            raise ValueError(
                f"cost A,B needs a B of less than {_MOST_LINEAR - 1} times A, got {self}; "
                "1,1000000000 already counts hardly anything but tokens"
            )

    def __str__(self) -> str:
        return ",".join(repr(float(value)).removesuffix(".0") for value in (self.quadratic, self.linear))

    @property
    def linear_tokens(self) -> int:
        """b / a in whole tokens, by which plans are balanced."""
        return round(self.linear / self.quadratic)


def parse_cost(text: str) -> Cost:
    """Parse `quadratic` or `A,B`.

    >>> parse_cost("1,24576").linear_tokens
    24576

    Raises:
        ValueError: anything else, or numbers out of range.
    """
    if text == QUADRATIC:
        return Cost()
    try:
        quadratic, linear = (parse_number(part) for part in text.split(","))
    except ValueError:
        raise ValueError(
            f"unknown cost {text!r}; known: quadratic, profile, or two numbers A,B such as 1,24576"
        ) from None
    return Cost(quadratic=quadratic, linear=linear)


def require_exact(linear: int, groups: Iterable[Group], num_gpus: int) -> None:
    """Refuse a linear term for which the work of an iteration might overflow int64.

    The rule: for each group, ranks * capacity * (capacity + linear) < `MOST_WORK`. Without a linear term nothing is
    refused, since 2^31 tokens in any samples stay below it.

    Raises:
        ValueError: a group breaks the rule; the message names its capacity.
    """
    for group in groups:
        num_ranks = group.num_dp_ranks(num_gpus)
        if linear and num_ranks * group.capacity * (group.capacity + linear) >= MOST_WORK:
            raise ValueError(
                f"with a linear term of {linear} tokens, {num_ranks} packs of {group.capacity} tokens may have "
                "more work than 2^62, which is not counted exactly; give a smaller B, or shorter groups"
            )


def linear_of_tokens(groups: Sequence[Group], num_gpus: int) -> int:
    """Return a linear term (tokens) beside which the squares hardly count, and that `require_exact` accepts."""
    most = max(group.num_dp_ranks(num_gpus) * group.capacity for group in groups)
    return max(1, min(2**30, MOST_WORK // most - max(group.capacity for group in groups) - 1))


def pack_sums(values: NDArray[Any], offsets: Int64Array, pieces: NDArray[np.integer], power: int = 1) -> Int64Array:
    """Sum (int64[p]) of a power of the values (int[m]) of each pack's pieces. O(m), block by block: O(p) memory."""
    sums = np.empty(len(offsets) - 1, dtype=np.int64)
    for block in blocks_of(offsets, _BLOCK):
        own = offsets[block.start : block.stop + 1]
        of_pieces = values[pieces[own[0] : own[-1]]]
        sums[block] = segment_sums(of_pieces if power == 1 else of_pieces.astype(np.int64) ** power, own - own[0])
    return sums


def segment_sums(values: NDArray[Any], offsets: Int64Array) -> Int64Array:
    """Sum (int64[p]) of each segment `values[offsets[k]:offsets[k+1]]`; empty segments give 0."""
    sums = np.zeros(len(offsets) - 1, dtype=np.int64)
    holds_any = offsets[1:] > offsets[:-1]
    if holds_any.any():
        sums[holds_any] = np.add.reduceat(values[: offsets[-1]], offsets[:-1][holds_any], dtype=np.int64)
    return sums


def tokens_and_work(pack_of: NDArray[np.integer], lengths: NDArray[np.integer], num_packs: int) -> NDArray[np.int64]:
    """Sum the tokens and attention work (int64[2, p]) of packs, from the pack of each sample (int[n]). O(n + p)."""
    length = lengths.astype(np.int64)
    sums = np.zeros((2, num_packs), dtype=np.int64)
    np.add.at(sums[0], pack_of, length)
    np.add.at(sums[1], pack_of, length * length)
    return sums


MOST_TOKENS = 2**31
"""No capacity reaches this, so that the attention work of a micro-batch fits int64."""


class KernelCosts(NamedTuple):
    """Fields of `GroupCosts` that kernels take."""

    rates: Float64Array
    capacity: Int64Array


_ENOUGH_TOKENS = 256, 128
"""See `GroupCosts.enough`: of a micro-batch, and more for each GPU that shares it. Hydraulis's code has 384, 512, 768,
1,024 and 1,280 tokens for tp 1 to 16."""


@dataclass(frozen=True, kw_only=True)
class GroupCosts:
    """The time of a micro-batch on each of k kinds of groups of GPUs, in any order.

    One with samples of lengths s takes `quadratic sum(s^2) + linear sum(s) + constant` seconds on one of the group's
    `pp` stages, and holds at most `capacity` tokens. Its micro-batches take `sum t_j + (pp - 1) max t_j`.

    >>> costs = GroupCosts(
    ...     gpus=[4, 4], pp=[1, 2], quadratic=[2, 1], linear=[8, 5], constant=[0, 1], capacity=[20, 10]
    ... )
    >>> costs.seconds(1, work=9, tokens=3).tolist()
    25.0
    """

    quadratic: Float64Array
    """float64[k]: seconds per token^2 of attention work, sum of s^2."""
    linear: Float64Array
    """float64[k]: seconds per token, communication included; above 0."""
    constant: Float64Array
    """float64[k]: seconds per micro-batch, whatever its contents."""
    capacity: Int64Array
    """int64[k]: most tokens of a micro-batch, and so of a sample."""
    gpus: Int64Array
    """int64[k]: GPUs of a group."""
    pp: Int64Array | int = 1
    """int64[k]: pipeline stages."""
    enough: Int64Array | int = 1
    """int64[k]: mean tokens that a pipeline's micro-batches have at least, where these are not too many for one: GPUs
    are slower on fewer, which the rates do not say (Hydraulis has 384 to 1,280 for tp 1 to 16)."""
    rates: Float64Array = field(init=False, repr=False)
    """float64[6, k]: `quadratic`, `linear`, `constant`, `pp - 1`, `enough` and `gpus`, as kernels take them: more
    arrays would make them slower."""

    def __post_init__(self) -> None:
        for name in (each.name for each in fields(self) if each.init):
            dtype = np.float64 if name in ("quadratic", "linear", "constant") else np.int64
            values = np.broadcast_to(getattr(self, name), np.shape(self.capacity))
            object.__setattr__(self, name, values.astype(dtype))
        assert len(self)
        rates = self.quadratic, self.linear, self.constant, self.pp - 1, self.enough, self.gpus
        object.__setattr__(self, "rates", np.array(rates, dtype=np.float64))
        assert np.isfinite(self.rates).all()
        assert (self.rates >= 0).all()
        assert (self.linear > 0).all()
        assert (self.capacity >= 1).all()
        assert (self.capacity < MOST_TOKENS).all()
        assert (self.gpus >= self.pp).all()

    @classmethod
    def of(cls, groups: Sequence[Group], rates: Sequence[tuple[float, float, float]] | None) -> GroupCosts:
        """Make the costs of groups from the quadratic, linear and constant seconds of each, which are known."""
        assert rates is not None
        quadratic, linear, constant = np.array(rates).T
        capacity, gpus, pp, of_stage = np.array(
            [(group.capacity, group.num_gpus, group.pp_size, group.layout.stage_gpus) for group in groups]
        ).T
        once, each = _ENOUGH_TOKENS
        return cls(
            quadratic=quadratic,
            linear=linear,
            constant=constant,
            capacity=capacity,
            gpus=gpus,
            pp=pp,
            enough=once + each * of_stage,
        )

    @property
    def arrays(self) -> KernelCosts:
        """Fields that kernels take."""
        return KernelCosts(self.rates, self.capacity)

    def __len__(self) -> int:
        return len(self.capacity)

    def seconds(self, kind: ArrayLike, work: ArrayLike, tokens: ArrayLike) -> Float64Array:
        """Predict the seconds (float64) of micro-batches on one stage of groups of a kind; arrays are broadcast.

        Args:
            kind: index of the kind.
            work: sum of s^2 over the samples.
            tokens: sum of s.
        """
        quadratic, linear, constant, *_ = self.rates[:, np.asarray(kind)]
        return np.asarray(quadratic * work + linear * tokens + constant)

    def up_to(self, num_gpus: int) -> GroupCosts:
        """Keep only the kinds of at most so many GPUs, of which there is one at least."""
        kept = self.gpus <= num_gpus
        return self if kept.all() else self.select(kept)

    def select(self, kinds: Any) -> GroupCosts:
        """Keep these kinds alone: an index array, in its order, or a mask."""
        return GroupCosts(**{each.name: getattr(self, each.name)[kinds] for each in fields(self) if each.init})
