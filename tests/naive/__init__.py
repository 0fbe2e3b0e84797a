"""Plain-Python twins of the numba kernels: slow, obvious, and compared with them on generated inputs."""

from tests.naive.packing import (
    best_fit,
    descending,
    fewest_packs,
    first_fit,
    fit_by_room,
    in_order,
    iterative_sampling_filling,
    l2_bound,
    next_fit,
    padded_batches,
    place_limited,
    worst_fit_decreasing,
    wrap,
)
from tests.naive.plan import (
    balanced_fill,
    filling_length,
    greedy_fill,
    longest_fill,
    packs_of,
    spread,
    spread_by_rank,
    steps_of,
    stratify,
)
from tests.naive.random import (
    SplitMix64,
    shuffled,
)
from tests.naive.sparsity import sparsity

__all__ = [
    "SplitMix64",
    "balanced_fill",
    "best_fit",
    "descending",
    "fewest_packs",
    "filling_length",
    "first_fit",
    "fit_by_room",
    "greedy_fill",
    "in_order",
    "iterative_sampling_filling",
    "l2_bound",
    "longest_fill",
    "next_fit",
    "packs_of",
    "padded_batches",
    "place_limited",
    "shuffled",
    "sparsity",
    "spread",
    "spread_by_rank",
    "steps_of",
    "stratify",
    "worst_fit_decreasing",
    "wrap",
]
