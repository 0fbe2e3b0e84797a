"""Instances for the integer programs, and a checked packing of one."""

from __future__ import annotations

import numpy as np

from packer_cli.plan.packing.best_fit import best_fit_decreasing
from packer_cli.plan.packing.ilp.cutting_stock import ALGORITHM, IlpOptions
from tests import naive


def array(lengths):
    return np.array(lengths, dtype=np.int32)


def triples(num_packs, capacity, seed):
    """Falkenauer's triplets: every pack of an optimal packing holds three samples and is full."""
    rng = np.random.default_rng(seed)
    lengths: list[int] = []
    while len(lengths) < 3 * num_packs:
        a = int(rng.integers(int(0.38 * capacity), int(0.49 * capacity)))
        b = int(rng.integers(capacity // 4, (capacity - a) // 2 + 1))
        if capacity // 4 <= capacity - a - b < capacity // 2:
            lengths += [a, b, capacity - a - b]
    return array(rng.permutation(lengths))


def cut_packs(num_packs, capacity, pieces, seed):
    """Full packs, cut at random: the optimum is known."""
    rng = np.random.default_rng(seed)
    cuts = [np.sort(rng.choice(np.arange(1, capacity), pieces - 1, replace=False)) for _ in range(num_packs)]
    return array(rng.permutation(np.concatenate([np.diff([0, *cut, capacity]) for cut in cuts])))


def num_bfd(lengths, capacity):
    return len(best_fit_decreasing(lengths, capacity)[0]) - 1


def solve(lengths, capacity, time_limit=20.0, max_lengths=300):
    """The number of packs; every packing is valid, and no worse than best-fit's."""
    offsets, order = ALGORITHM.pack(lengths, capacity, 0, IlpOptions(time_limit=time_limit, max_lengths=max_lengths))
    packs = naive.packs_of(offsets, order)
    assert sorted(i for pack in packs for i in pack) == list(range(len(lengths)))
    assert all(pack and sum(int(lengths[i]) for i in pack) <= capacity for pack in packs)
    assert len(packs) <= num_bfd(lengths, capacity)
    return len(packs)
