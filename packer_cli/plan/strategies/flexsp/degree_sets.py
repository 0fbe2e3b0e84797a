"""Sets of degrees, as a count for each degree: fill the GPUs, change a little, and remember which were tried."""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from packer_cli.plan.kernels.timed_dealing import copy_to


@njit(cache=True, no_cpython_wrapper=True)
def kinds_of(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """int64[p]: the degree's index of each group, falling."""
    kinds = np.empty(counts.sum(), dtype=np.int64)
    p = 0
    for kind in range(len(counts) - 1, -1, -1):
        kinds[p : p + counts[kind]] = kind
        p += counts[kind]
    return kinds


@njit(cache=True, no_cpython_wrapper=True)
def _gpus_of(degrees: NDArray[np.int64], counts: NDArray[np.int64]) -> int:
    gpus = 0
    for kind in range(len(degrees)):
        gpus += degrees[kind] * counts[kind]
    return gpus


@njit(cache=True, no_cpython_wrapper=True)
def fill_up(degrees: NDArray[np.int64], counts: NDArray[np.int64], num_gpus: int, first: int) -> None:
    """Give the free GPUs to groups of the degree `first`, then of falling degrees."""
    free = num_gpus - _gpus_of(degrees, counts)
    counts[first] += free // degrees[first]
    free %= degrees[first]
    for kind in range(len(degrees) - 1, -1, -1):
        counts[kind] += free // degrees[kind]
        free %= degrees[kind]


@njit(cache=True, no_cpython_wrapper=True)
def neighbor(
    degrees: NDArray[np.int64],
    counts: NDArray[np.int64],
    num_gpus: int,
    take: int,
    give: int,
    fill: int,
    around: NDArray[np.int64],
) -> bool:
    """Write to `around` the set with a group of `give` instead of one of `take` (-1: none); False if there is none.

    If it needs more GPUs, groups leave: the largest that is no larger than the need, else the smallest. If it frees
    some, groups of the degree `fill` get them first.
    """
    if take == give or (take >= 0 and counts[take] == 0):
        return False
    copy_to(counts, around)
    if take >= 0:
        around[take] -= 1
    around[give] += 1
    over = _gpus_of(degrees, around) - num_gpus
    if over > 0 and fill > 0:
        return False
    while over > 0:
        leaves = -1
        for kind in range(len(degrees)):
            others = around[kind] - (1 if kind == give else 0)
            if others > 0 and (leaves < 0 or degrees[kind] <= over):
                leaves = kind
        if leaves < 0:
            return False
        around[leaves] -= 1
        over -= degrees[leaves]
    fill_up(degrees, around, num_gpus, fill)
    return True


@njit(cache=True, no_cpython_wrapper=True)
def _hash(counts: NDArray[np.int64]) -> np.uint64:
    """FNV-1a of a set; never 0."""
    value = np.uint64(0xCBF29CE484222325)
    for count in counts:
        value = (value ^ np.uint64(count)) * np.uint64(0x100000001B3)
    return value | np.uint64(1)


@njit(cache=True, no_cpython_wrapper=True)
def is_member(table: NDArray[np.uint64], counts: NDArray[np.int64]) -> bool:
    """Whether the set was added to the table."""
    value = _hash(counts)
    at = np.int64(value >> np.uint64(40)) % len(table)
    while table[at] != 0:
        if table[at] == value:
            return True
        at = (at + 1) % len(table)
    return False


@njit(cache=True, no_cpython_wrapper=True)
def add_member(table: NDArray[np.uint64], counts: NDArray[np.int64]) -> bool:
    """Whether the set is new; a table nearly full takes no more, and calls every set known."""
    value = _hash(counts)
    at = np.int64(value >> np.uint64(40)) % len(table)
    for _ in range(64):
        if table[at] == value:
            return False
        if table[at] == 0:
            table[at] = value
            return True
        at = (at + 1) % len(table)
    return False
