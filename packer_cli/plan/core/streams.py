"""SplitMix64 for kernels: the same numbers on every machine and numba version.

Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014. Not for cryptography.
"""

from __future__ import annotations

from enum import IntEnum, unique

import numpy as np

from packer_cli.jit import njit
from packer_cli.plan.core.types import Int32Array, Int64Array, UInt64Array

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)


@unique
class Stream(IntEnum):
    """The purpose of a random stream. Each has its own number; changing one would change the bytes of plans."""

    WEIGHTS = 1
    """The samples that an epoch repeats once more."""
    PACKING = 2
    BALANCE = 3
    """The order of a group's packs before they are sorted."""
    ORDER = 4
    """The order of an epoch's iterations."""
    RANKS = 5
    """The ranks of the packs of an iteration."""
    REFERENCE = 6
    """The uniform order that displacement is measured against."""
    CUT = 7
    """Packing that cuts samples."""
    DEAL = 8
    """Like `BALANCE`, for packs dealt again to a different number of GPUs."""
    ARRIVAL = 9
    """The order in which a stream would bring the samples (WLB-LLM)."""


def rng_state(seed: int, *stream: int) -> UInt64Array:
    """Return the state (uint64[1]) for a seed and the numbers of a stream (`Stream`, group, epoch).

    >>> int(rng_state(0)[0]) != int(rng_state(0, 1)[0])
    True
    """
    return np.random.SeedSequence([seed & 0xFFFFFFFFFFFFFFFF, *stream]).generate_state(1, np.uint64).astype(np.uint64)


@njit(cache=True)
def next_uint64(state: UInt64Array) -> np.uint64:
    """Advance the state and return 64 random bits."""
    state[0] += _GOLDEN
    z: np.uint64 = state[0]
    z = (z ^ (z >> np.uint64(30))) * _MIX_1
    z = (z ^ (z >> np.uint64(27))) * _MIX_2
    return z ^ (z >> np.uint64(31))


@njit(cache=True)
def next_below(state: UInt64Array, bound: int) -> int:
    """Draw a number in 0 .. bound-1, for bound < 2^32 (bias under bound / 2^32)."""
    return int(((next_uint64(state) >> np.uint64(32)) * np.uint64(bound)) >> np.uint64(32))


@njit(cache=True)
def shuffle(values: Int32Array, state: UInt64Array) -> None:
    """Shuffle in place by Fisher-Yates. O(n)."""
    for i in range(len(values) - 1, 0, -1):
        j = next_below(state, i + 1)
        values[i], values[j] = values[j], values[i]


def shuffle_buckets(values: Int32Array, state: UInt64Array, into: Int32Array, bits: int) -> None:
    """Shuffle uniformly arrays larger than the processor's caches. O(n), sequential.

    Every value draws one of 2^bits buckets, then each bucket is shuffled, so memory is read and written in order.
    Source: Rao 1961; Sandelius 1962.

    Args:
        values: int32[n]; or empty, for 0 .. n-1.
        into: int32[n], written to.
        bits: choose it so that a bucket has a few hundred KiB, and both passes stay in the caches.
    """
    _shuffle_buckets(values, state, into, bits, np.zeros((1 << bits) + 2, dtype=np.int64))


@njit(cache=True)
def _shuffle_buckets(values: Int32Array, state: UInt64Array, into: Int32Array, bits: int, end: Int64Array) -> None:
    """Shuffle in buckets: the kernel. `end` (int64[2^bits + 2]) is zeros; bucket b is `into[end[b]:end[b + 1]]`."""
    shift = np.uint64(64 - bits)
    start = state[0]
    for _ in range(len(into)):
        end[np.int64(next_uint64(state) >> shift) + 2] += 1
    for b in range(2, len(end)):
        end[b] += end[b - 1]
    state[0] = start
    for i in range(len(into)):
        bucket = np.int64(next_uint64(state) >> shift) + 1
        into[end[bucket]] = values[i] if len(values) else i
        end[bucket] += 1
    for b in range(len(end) - 2):
        shuffle(into[end[b] : end[b + 1]], state)


def bucket_bits(num: int) -> int:
    """Return `bits` for `shuffle_buckets`: buckets of about 2^17 values, 512 KiB; 0 if one bucket is enough."""
    return max(0, num.bit_length() - 17)


def shuffled(num: int, state: UInt64Array) -> Int32Array:
    """Return 0 .. num-1 (int32[num]) in a random order. O(num)."""
    bits = bucket_bits(num)
    if bits:
        order = np.empty(num, dtype=np.int32)
        shuffle_buckets(np.empty(0, dtype=np.int32), state, order, bits)
    else:
        order = np.arange(num, dtype=np.int32)
        shuffle(order, state)
    return order
