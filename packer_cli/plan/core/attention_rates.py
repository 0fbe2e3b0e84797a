"""Speed of an attention kernel, and the rule by which packs get their context-parallel (CP) sharding. No numba."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import numpy as np

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


@dataclass(frozen=True, kw_only=True)
class AttentionRates:
    """Work of the attention kernel a second, in any unit, by the size of a piece.

    Between the given sizes, rates are interpolated linearly; beyond them the nearest one holds. Only products, sums
    and quotients are taken, so every machine decides alike.
    """

    queries: tuple[int, ...]
    """a sizes, rising."""
    keys: tuple[int, ...]
    """b sizes, rising."""
    rates: tuple[tuple[float, ...], ...]
    """b rows of a rates."""

    @classmethod
    def assumed(cls, rho: float = 1.0) -> AttentionRates:
        """Return the same rate for all pieces, but `rho` of it for those of fewer than `SHORT` queries.

        >>> AttentionRates.assumed(0.5).rates
        ((0.5, 1.0),)
        """
        return cls(queries=(SHORT - 1, SHORT), keys=(1,), rates=((rho, 1.0),))

    @classmethod
    def measured(cls, rows: Sequence[tuple[int, int, float]]) -> AttentionRates:
        """Return rates from (queries, keys, seconds) of pieces, at least one; seconds above 0, queries at most keys.

        >>> rates = AttentionRates.measured([(128, 1024, 1.0), (256, 1024, 1.0), (128, 4096, 4.0)])
        >>> rates.queries, rates.keys, [len(row) for row in rates.rates]
        ((128, 256), (1024, 4096), [2, 2])
        """
        table = sorted((kv, q, float(tile_work(q, kv)) / seconds) for q, kv, seconds in rows)
        queries, keys = tuple(sorted({q for q, _, _ in rows})), tuple(sorted({kv for _, kv, _ in rows}))
        rates = []
        for key_length in keys:
            own = np.array([(q, rate) for kv, q, rate in table if kv == key_length])
            rates.append(tuple(np.interp(queries, own[:, 0], own[:, 1]).tolist()))
        return cls(queries=queries, keys=keys, rates=tuple(rates))


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
