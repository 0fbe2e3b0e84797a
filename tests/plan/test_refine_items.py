"""Refining an iteration of items: the exchanges of its twin, and what they keep."""

from __future__ import annotations

import itertools
from functools import partial

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from packer_cli.plan.kernels.refine import even_items, refine_packs
from tests.naive import items as naive

loads = st.tuples(st.integers(1, 400), st.integers(1, 30), st.integers(0, 30))
packs_of_items = st.lists(st.lists(loads, min_size=1, max_size=24), min_size=1, max_size=6)


@settings(max_examples=60)
@given(packs_of_items, st.integers(0, 40), st.integers(1, 4))
def test_refine_equals_its_twin(packs, extra, num_ranks):
    packs = [sorted(pack, key=lambda item: -item[0]) for pack in packs]
    capacity = max(sum(item[k] for item in pack) for pack in packs for k in (1, 2)) + extra
    work, sizes, paths = np.array([item for pack in packs for item in pack]).T
    offsets = np.concatenate([[0], np.cumsum([len(pack) for pack in packs])])
    pieces = np.arange(len(work), dtype=np.int32)
    even = partial(even_items, needs=(sizes, paths), work=work, limits=(capacity, capacity))
    refine_packs(offsets, pieces, 0, len(packs), num_ranks, even)
    refined = [pieces[a:b] for a, b in itertools.pairwise(offsets)]
    assert sorted(pieces.tolist()) == list(range(len(work)))
    assert all(len(pack) and max(sizes[pack].sum(), paths[pack].sum()) <= capacity for pack in refined)
    for first in range(0, len(packs), num_ranks):
        own, before = packs[first : first + num_ranks], naive.works_of(packs[first : first + num_ranks])
        width = min(sum(map(len, own)), 2 * max(map(len, own)))
        limit = max(sum(before) / len(before), max(item[0] for pack in own for item in pack)) * 1.0002
        if max(before) > limit:
            naive.even_out(own, capacity, limit, 64 * len(own), width)
        found = [work[pack].sum() for pack in refined[first : first + num_ranks]]
        assert found == naive.works_of(own)
        assert max(found) <= max(before)
