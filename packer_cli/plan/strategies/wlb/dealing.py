"""Deals the micro-batches of each step to the replicas, so that the slowest pipeline ends as early as possible.

A replica of p pipeline stages takes `sum t + (p - 1) max t` over its micro-batches (WLB-LLM, arXiv 2503.17924, figure
5). They are dealt longest first, then exchanged between the slowest replica and the others while that helps. Price:
O(k^2) for the k micro-batches of a step, at most `_EXCHANGES` times.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from packer_cli.plan.core.types import Int64Array

_EXCHANGES = 64
"""Most exchanges a step."""


def deal_steps(
    offsets: Int64Array, times: NDArray[np.float64], num_replicas: int, most: int, pp_size: int
) -> Int64Array:
    """The replica (int64[p]) of each micro-batch.

    Args:
        offsets: int64[s+1]: step j has the micro-batches `offsets[j] .. offsets[j+1] - 1`, at most
            `num_replicas * most`.
        times: float64[p], on one stage of the pipeline.
        most: micro-batches of a replica in a step.
        pp_size: stages.
    """
    replica_of = np.zeros(len(times), dtype=np.int64)
    if num_replicas > 1:
        _deal_steps(offsets, times, num_replicas, most, pp_size - 1, replica_of)
    return replica_of


@njit(cache=True)
def _deal_steps(
    offsets: NDArray[np.int64],
    times: NDArray[np.float64],
    num_replicas: int,
    most: int,
    bubbles: int,
    replica_of: NDArray[np.int64],
) -> None:
    for step in range(len(offsets) - 1):
        own = slice(offsets[step], offsets[step + 1])
        _deal(times[own], num_replicas, most, bubbles, replica_of[own])
        for _ in range(_EXCHANGES):
            if not _exchange(times[own], num_replicas, bubbles, replica_of[own]):
                break


@njit(cache=True)
def _deal(
    times: NDArray[np.float64], num_replicas: int, most: int, bubbles: int, replica_of: NDArray[np.int64]
) -> None:
    """Longest first, each to the replica with room that then ends first, the first of equals."""
    total, longest = np.zeros(num_replicas), np.zeros(num_replicas)
    count = np.zeros(num_replicas, dtype=np.int64)
    for k in np.argsort(-times, kind="mergesort"):
        best, earliest = -1, np.inf
        for r in range(num_replicas):
            end = total[r] + times[k] + bubbles * max(longest[r], times[k])
            if count[r] < most and end < earliest:
                best, earliest = r, end
        replica_of[k] = best
        total[best] += times[k]
        longest[best] = max(longest[best], times[k])
        count[best] += 1


@njit(cache=True)
def _exchange(times: NDArray[np.float64], num_replicas: int, bubbles: int, replica_of: NDArray[np.int64]) -> bool:
    """Exchange the two micro-batches, one of the slowest replica, after which the slower of both ends first.

    Returns False if no exchange helps.
    """
    total, first, second = np.zeros(num_replicas), np.zeros(num_replicas), np.zeros(num_replicas)
    for k in range(len(times)):  # The longest and the second longest of each.
        r, t = replica_of[k], times[k]
        total[r] += t
        if t > first[r]:
            first[r], second[r] = t, first[r]
        elif t > second[r]:
            second[r] = t
    slowest = np.argmax(total + bubbles * first)
    best_a = best_b = -1
    least = total[slowest] + bubbles * first[slowest]
    for a in range(len(times)):
        if replica_of[a] != slowest:
            continue
        rest_a = second[slowest] if times[a] == first[slowest] else first[slowest]
        for b in range(len(times)):
            other = replica_of[b]
            if other == slowest or times[b] >= times[a]:
                continue
            rest_b = second[other] if times[b] == first[other] else first[other]
            of_a = total[slowest] - times[a] + times[b] + bubbles * max(rest_a, times[b])
            of_b = total[other] - times[b] + times[a] + bubbles * max(rest_b, times[a])
            if max(of_a, of_b) < least * (1 - 1e-12):
                best_a, best_b, least = a, b, max(of_a, of_b)
    if best_a < 0:
        return False
    replica_of[best_a], replica_of[best_b] = replica_of[best_b], replica_of[best_a]
    return True
