"""The context-parallel (CP) sharding that each pack takes: the one whose slowest rank is predicted to finish first.

Per sequence, a rank holds few long runs, but their work is uneven where a pack has several samples. Per document, work
is even, but every sample is cut into 2 * cp_size chunks, and an attention kernel computes whole tiles of 128 queries,
however short a chunk is (WLB-LLM, arXiv 2503.17924, sections 5.2 and 5.3). Which is faster depends only on the lengths
and on the kernel, so it is decided here and not in training.

A *piece* is a run of q queries of one sample, with the kv keys up to its last token. The kernel's work on it counts
queries in tiles, and its time is that over the kernel's rate for pieces of this size: measured (`hbpack profile`), or
the same for all. A rank takes the sum over its pieces, a sharding as long as its slowest rank.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from packer_cli.format import sharding
from packer_cli.format.sharding import PLANNED, STRETCHED
from packer_cli.jit import njit
from packer_cli.plan.core.attention_rates import AttentionRates, ShardingRule, tile_work
from packer_cli.plan.core.segments import attention_segments
from packer_cli.plan.core.types import Float64Array, Int32Array, Int64Array, Plan, read_only

CODES = {"sequence": PLANNED.index("zigzag"), "document": PLANNED.index("document")}


def choose_sharding(plan: Plan, rule: ShardingRule) -> Plan:
    """Choose the sharding of each pack that CP ranks share; ties go per sequence.

    Price: that of `predict_seconds`, for `auto` and `static`.
    """
    cp_sizes = _cp_sizes(plan)
    if (cp_sizes == 1).all():
        return plan
    if rule.choice in ("auto", "static"):
        seconds = predict_seconds(*attention_segments(plan), cp_sizes, rule.rates)
        if rule.choice == "static":
            seconds[:] = seconds.sum(axis=0)
        chosen = (cp_sizes > 1) & (seconds[:, CODES["document"]] < seconds[:, CODES["sequence"]])
    else:
        chosen = (cp_sizes > 1) & (rule.choice == "document")
    return replace(plan, packs=replace(plan.packs, cp_sharding=chosen.astype(np.int8)))


def predict_seconds(
    lengths: Int32Array, offsets: Int64Array, cp_sizes: Int64Array, rates: AttentionRates
) -> Float64Array:
    """Predict attention's time on each pack's slowest rank under each sharding of `PLANNED` (float64[p, 2]).

    Times are in the unit of the rates, and 0 for a CP degree of 1. Padding of the row is left out. Price: about 40 ns
    for each sample, CP rank and sharding.

    Args:
        lengths, offsets: what attention runs over in each pack, see `plan.core.segments.attention_segments`.
        cp_sizes: int64[p], CP degree of each pack.
    """
    by_size = np.array(rates.queries), np.array(rates.keys), np.array(rates.rates)
    found = [
        _slowest(lengths, offsets, cp_sizes, np.full(len(cp_sizes), code), by_size) for code in range(len(PLANNED))
    ]
    return np.stack(found, axis=1)


def cp_imbalance(plan: Plan) -> Float64Array:
    """Return the attention work of each pack's busiest CP rank over its ranks' mean (float64[p]); 1 without CP.

    Work is the number of keys that queries see. Price: about 25 ns for each sample and CP rank.
    """
    return _busiest_ranks(plan, in_tiles=False)


def cp_slowdown(plan: Plan) -> Float64Array:
    """Return attention's time over that of CP ranks that share the whole samples' time evenly (float64[p]).

    The time is that of the slowest rank, in tiles: a short piece takes as long as a whole tile. Price: as of
    `cp_imbalance`.
    """
    return _busiest_ranks(plan, in_tiles=True)


def _busiest_ranks(plan: Plan, *, in_tiles: bool) -> Float64Array:
    """Return the work of each pack's busiest rank over an even share of its samples' (float64[p]); 1 without CP."""
    values, cp_sizes = np.ones(len(plan.packs)), _cp_sizes(plan)
    has_cp = cp_sizes > 1
    if has_cp.any():
        lengths, offsets = attention_segments(plan)
        length = lengths.astype(np.int64)
        work = tile_work(length, length) if in_tiles else length * (length + 1) / 2
        whole = np.add.reduceat(work, offsets[:-1])
        busiest = _slowest(lengths, offsets, cp_sizes, plan.packs.cp_sharding, _ANY_RATE, in_tiles)
        values[has_cp] = (busiest * cp_sizes / whole)[has_cp]
    return values


_ANY_RATE = (np.ones(1, dtype=np.int64), np.ones(1, dtype=np.int64), np.ones((1, 1)))
"""Rates of pieces that all count their work."""


def _slowest(
    lengths: Int32Array,
    offsets: Int64Array,
    cp_sizes: Int64Array,
    codes: NDArray[np.integer],
    by_size: tuple[Int64Array, Int64Array, Float64Array],
    in_tiles: bool = True,
) -> Float64Array:
    """Predict the time of each pack's slowest rank (float64[p]); 0 without CP.

    Args:
        codes: int[p], sharding of each pack, of `PLANNED`.
        by_size: as of `AttentionRates`: queries, keys, and rates.
        in_tiles: whether queries count in whole tiles.
    """
    seconds = np.zeros(len(cp_sizes))
    _fill(read_only(lengths), read_only(offsets), cp_sizes, codes.astype(np.int64), by_size, in_tiles, seconds)
    return seconds


def _cp_sizes(plan: Plan) -> Int64Array:
    return np.array([group.cp_size for group in plan.groups], dtype=np.int64)[plan.packs.group]


_added_before = njit(sharding.added_before)
_tile_work = njit(tile_work)


@njit(cache=True)
def _fill(
    lengths: Int32Array,
    offsets: Int64Array,
    cp_sizes: Int64Array,
    codes: Int64Array,
    by_size: tuple[Int64Array, Int64Array, Float64Array],
    in_tiles: bool,
    seconds: Float64Array,
) -> None:
    """Fill `seconds` of packs with CP."""
    queries, keys, rates = by_size
    for k in range(len(cp_sizes)):
        if cp_sizes[k] > 1:
            of_rank, own = np.zeros(cp_sizes[k]), lengths[offsets[k] : offsets[k + 1]]
            for rank, q, kv in _per_document(own, cp_sizes[k]) if codes[k] else _per_sequence(own, cp_sizes[k]):
                work = _tile_work(q, kv) if in_tiles else q * (kv - (q - 1) / 2)
                of_rank[rank] += work / _rate(q, kv, queries, keys, rates)
            seconds[k] = of_rank.max()


@njit(cache=True)
def _rate(q: int, kv: int, queries: Int64Array, keys: Int64Array, rates: Float64Array) -> float:
    i, to_i = _between(q, queries)
    j, to_j = _between(kv, keys)
    rate: float = rates[j, i] + to_i * (rates[j, min(i + 1, len(queries) - 1)] - rates[j, i])
    if to_j == 0:
        return rate
    above = rates[j + 1, i] + to_i * (rates[j + 1, min(i + 1, len(queries) - 1)] - rates[j + 1, i])
    found: float = rate + to_j * (above - rate)
    return found


@njit(cache=True)
def _between(value: int, nodes: Int64Array) -> tuple[int, float]:
    """Find the node at or below a value, and which part of the way to the next one it is."""
    last = len(nodes) - 1
    if value <= nodes[0]:
        return 0, 0.0
    for i in range(last):
        if value < nodes[i + 1]:
            return i, (value - nodes[i]) / (nodes[i + 1] - nodes[i])
    return last, 0.0


@njit(cache=True)
def _per_sequence(lengths: Int32Array, cp_size: int) -> Int64Array:
    """Return pieces (int64[x, 3]: rank, queries, keys) of a row of samples; those of `format.sharding`'s parts."""
    num_chunks = 2 * cp_size
    chunk = -(-lengths.sum() // num_chunks)
    pieces = np.empty((len(lengths) + num_chunks, 3), dtype=np.int64)
    count = start = k = 0
    for length in lengths:
        place = 0
        while place < length:
            stop = min(length, (k + 1) * chunk - start)
            pieces[count] = min(k, num_chunks - 1 - k), stop - place, stop
            count += 1
            place = stop
            if start + stop == (k + 1) * chunk:
                k += 1
        start += length
    return pieces[:count]


@njit(cache=True)
def _per_document(lengths: Int32Array, cp_size: int) -> Int64Array:
    """Return pieces as `_per_sequence`, of samples that are each divided among the ranks."""
    num_chunks = 2 * cp_size
    pieces = np.empty((len(lengths) * 2 * num_chunks, 3), dtype=np.int64)
    places = np.empty(len(lengths) * num_chunks, dtype=np.int64)
    count = num_places = dealt = 0
    for i in np.argsort(lengths)[::-1]:
        length = int(lengths[i])
        chunk = length // num_chunks
        rest = length - num_chunks * chunk
        added = rest if chunk >= STRETCHED else 0
        stop = 0
        for k in range(num_chunks):
            start = stop
            stop = (k + 1) * chunk
            stop += _added_before(dealt + added, k + 1, num_chunks) - _added_before(dealt, k + 1, num_chunks)
            if stop > start:
                pieces[count] = min(k, num_chunks - 1 - k), stop - start, stop
                count += 1
        dealt += added
        for place in range(stop, length):
            places[num_places] = place
            num_places += 1
    for place in np.sort(places[:num_places])[::-1]:
        k = dealt % num_chunks
        pieces[count] = min(k, num_chunks - 1 - k), 1, place + 1
        count += 1
        dealt += 1
    return pieces[:count]
