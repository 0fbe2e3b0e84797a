"""Numba kernels for a set of small integers with nearest-neighbor queries: a 64-way bitmap tree.

Three levels of 64-bit words cover 0 .. 2^18 - 1, and so on; insert, remove, `ceiling` and `floor` access one or two
words per level. The set indexes lengths or remaining capacities, which makes best-fit linear in practice.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from packer_cli.jit import njit
from packer_cli.plan.core.types import BoolArray, Int64Array, UInt64Array

_DEBRUIJN = np.uint64(0x03F79D71B4CB0A89)
_BIT_OF = np.zeros(64, dtype=np.int64)
for _bit in range(64):
    _BIT_OF[(((1 << _bit) * int(_DEBRUIJN)) & 0xFFFFFFFFFFFFFFFF) >> 58] = _bit

_ONE = np.uint64(1)
_ALL = np.uint64(0xFFFFFFFFFFFFFFFF)


class LengthIndex(NamedTuple):
    """A set; functions that change it write to its arrays."""

    words: UInt64Array
    """uint64[w]: the levels one after another, leaves first."""
    starts: Int64Array
    """int64[levels + 1]: where each level begins, and the end."""


@njit(cache=True, no_cpython_wrapper=True)
def _lowest_bit(word: np.uint64) -> int:
    found: int = _BIT_OF[((word & (~word + _ONE)) * _DEBRUIJN) >> np.uint64(58)]
    return found


@njit(cache=True, no_cpython_wrapper=True)
def _highest_bit(word: np.uint64) -> int:
    # All bits below the highest one are set, then all but that are cleared.
    word |= word >> np.uint64(1)
    word |= word >> np.uint64(2)
    word |= word >> np.uint64(4)
    word |= word >> np.uint64(8)
    word |= word >> np.uint64(16)
    word |= word >> np.uint64(32)
    return _lowest_bit(word ^ (word >> _ONE))


def empty_index(size: int) -> LengthIndex:
    """Make an empty set over 0 .. size-1."""
    starts = np.zeros(8, dtype=np.int64)
    levels = 0
    width = size
    while True:
        width = (width + 63) >> 6
        starts[levels + 1] = starts[levels] + width
        levels += 1
        if width <= 1:
            break
    return LengthIndex(np.zeros(starts[levels], dtype=np.uint64), starts[: levels + 1].copy())


make_index = njit(cache=True)(empty_index)
"""`empty_index` for kernels. Prefer to pass an index in: kernels that allocate memory compile slowly."""


@njit(cache=True)
def index_add(index: LengthIndex, value: int) -> None:
    """Add a value."""
    words, starts = index
    for level in range(len(starts) - 1):
        words[starts[level] + (value >> 6)] |= _ONE << np.uint64(value & 63)
        value >>= 6


@njit(cache=True)
def full_index(members: BoolArray) -> LengthIndex:
    """Make the set of the indices at which `members` (bool[size]) is True."""
    index = make_index(len(members))
    for value in range(len(members)):
        if members[value]:
            index_add(index, value)
    return index


@njit(cache=True)
def index_remove(index: LengthIndex, value: int) -> None:
    """Remove a value."""
    words, starts = index
    for level in range(len(starts) - 1):
        slot = starts[level] + (value >> 6)
        words[slot] &= ~(_ONE << np.uint64(value & 63))
        if words[slot] != 0:
            return
        value >>= 6


@njit(cache=True)
def index_ceiling(index: LengthIndex, value: int) -> int:
    """Find the least member >= value, or -1."""
    words, starts = index
    levels = len(starts) - 1
    for level in range(levels):
        slot = value >> 6
        if slot >= starts[level + 1] - starts[level]:
            return -1
        word = words[starts[level] + slot] & (_ALL << np.uint64(value & 63))
        if word != 0:
            found = (slot << 6) + _lowest_bit(word)
            for below in range(level - 1, -1, -1):
                found = (found << 6) + _lowest_bit(words[starts[below] + found])
            return found
        value = slot + 1
    return -1


@njit(cache=True)
def index_floor(index: LengthIndex, value: int) -> int:
    """Find the greatest member <= value, or -1. `value` may exceed the size."""
    words, starts = index
    last = ((starts[1] - starts[0]) << 6) - 1
    if value > last:
        value = last
    levels = len(starts) - 1
    for level in range(levels):
        if value < 0:
            return -1
        slot = value >> 6
        word = words[starts[level] + slot] & (_ALL >> np.uint64(63 - (value & 63)))
        if word != 0:
            found = (slot << 6) + _highest_bit(word)
            for below in range(level - 1, -1, -1):
                found = (found << 6) + _highest_bit(words[starts[below] + found])
            return found
        value = slot - 1
    return -1
