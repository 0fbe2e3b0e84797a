"""Speed of an attention kernel, and the rule by which packs get their context-parallel (CP) sharding. No numba."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import numpy as np

from packer_cli.plan.core.types import Float64Array, Int64Array
from packer_cli.sizes import parse_number

CpSharding = Literal["sequence", "document", "static", "auto"]

TILE = 128
"""Queries that an attention kernel computes together (FlashAttention)."""
SHORT = 256
"""Queries from which on tiles share the keys that they load (WLB-LLM, section 5.2)."""


def tile_work(queries: Any, keys: Any) -> Any:
    """Count scores that a kernel computes for a piece: queries in whole tiles, keys up to the mean query's last.

    >>> tile_work(1, 1000), tile_work(128, 1000)
    (128000.0, 119872.0)
    """
    return (queries + TILE - 1) // TILE * TILE * (keys - (queries - 1) / 2)


@dataclass(frozen=True, kw_only=True, eq=False)
class AttentionRates:
    """Work of the attention kernel a second, in any unit, by the size of a piece.

    Between the given sizes, rates are interpolated linearly; beyond them the nearest one holds. Only products, sums
    and quotients are taken, so every machine decides alike.
    """

    queries: Int64Array
    """int64[a], rising"""
    keys: Int64Array
    """int64[b], rising"""
    rates: Float64Array
    """float64[b, a]"""

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, AttentionRates):
            return NotImplemented
        pairs = zip(vars(self).values(), vars(other).values(), strict=True)
        return all(np.array_equal(own, theirs) for own, theirs in pairs)

    __hash__ = None  # type: ignore[assignment]

    @classmethod
    def assumed(cls, rho: float = 1.0) -> AttentionRates:
        """Return the same rate for all pieces, but `rho` of it for those of fewer than `SHORT` queries.

        >>> AttentionRates.assumed(0.5).rates.tolist()
        [[0.5, 1.0]]
        """
        return cls(queries=np.array([SHORT - 1, SHORT]), keys=np.array([1]), rates=np.array([[rho, 1.0]]))

    @classmethod
    def measured(cls, rows: Sequence[tuple[int, int, float]]) -> AttentionRates:
        """Return rates from (queries, keys, seconds) of pieces, at least one; seconds above 0, queries at most keys.

        >>> rates = AttentionRates.measured([(128, 1024, 1.0), (256, 1024, 1.0), (128, 4096, 4.0)])
        >>> rates.queries.tolist(), rates.keys.tolist(), [len(row) for row in rates.rates]
        ([128, 256], [1024, 4096], [2, 2])
        """
        table = sorted((kv, q, float(tile_work(q, kv)) / seconds) for q, kv, seconds in rows)
        queries = np.unique([q for _, q, _ in table])
        keys = np.unique([kv for kv, _, _ in table])
        rates = np.empty((len(keys), len(queries)))
        for row, key_length in zip(rates, keys, strict=True):
            own = np.array([(q, rate) for kv, q, rate in table if kv == key_length])
            row[:] = np.interp(queries, own[:, 0], own[:, 1])
        return cls(queries=queries, keys=keys, rates=rates)


@dataclass(frozen=True, kw_only=True)
class ShardingRule:
    """Rule by which packs that CP ranks share are sharded."""

    choice: CpSharding = "auto"
    """One sharding for all packs, the one of the two that is faster for all (`static`), or pack by pack the faster."""
    rates: AttentionRates = field(default_factory=AttentionRates.assumed)


def parse_cp_sharding(text: str) -> tuple[CpSharding, float]:
    """Parse a choice, or `auto:rho=R`: the choice, and `rho` of `AttentionRates.assumed`.

    >>> parse_cp_sharding("auto:rho=0.7")
    ('auto', 0.7)

    Raises:
        ValueError: anything else, or an R that is not above 0 and at most 1.
    """
    name, colon, option = text.partition(":")
    key, equals, value = option.partition("=")
    known = get_args(CpSharding)
    if name not in known or (colon and (name != "auto" or key != "rho" or not equals)):
        raise ValueError(f"unknown sharding {text!r}; known: {', '.join(known)}, and auto:rho=R such as auto:rho=0.7")
    try:
        rho = parse_number(value) if colon else 1.0
    except ValueError:
        rho = 0.0
    if not 0 < rho <= 1:
        raise ValueError(f"rho must be a number above 0 and at most 1, got {value!r}")
    return name, rho  # type: ignore[return-value]
