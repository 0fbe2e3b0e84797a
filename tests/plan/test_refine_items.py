"""Refining an iteration of items: the exchanges of its twin, and what they keep."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from packer_cli.plan.kernels.balance.items import refine_items
from tests.naive import items as naive

packs_of_items = st.lists(
    st.lists(st.tuples(st.integers(1, 400), st.integers(1, 30)), min_size=1, max_size=24), min_size=1, max_size=6
)


@settings(max_examples=200)
@given(packs_of_items, st.integers(0, 40), st.integers(1, 4))
def test_refine_equals_its_twin(packs, extra, num_ranks):
    packs = [sorted(pack, key=lambda item: -item[0]) for pack in packs]
    capacity = max(sum(size for _, size in pack) for pack in packs) + extra
    work, sizes = np.array([item for pack in packs for item in pack]).T
    offsets = np.concatenate([[0], np.cumsum([len(pack) for pack in packs])])
    pieces, sizes = np.arange(len(work), dtype=np.int32), sizes.astype(np.int32)
    refine_items(offsets, pieces, sizes, work, 0, len(packs), num_ranks, capacity)
    refined = [pieces[a:b] for a, b in itertools.pairwise(offsets)]
    assert sorted(pieces.tolist()) == list(range(len(work)))
    assert all(len(pack) and sizes[pack].sum() <= capacity for pack in refined)
    for first in range(0, len(packs), num_ranks):
        own, before = packs[first : first + num_ranks], naive.works_of(packs[first : first + num_ranks])
        width = min(sum(map(len, own)), 2 * max(map(len, own)))
        heaviest = max(work for pack in own for work, _ in pack)
        limit = max(sum(before) / len(before), heaviest) * 1.0002
        if max(before) > limit:
            naive.even_out(own, capacity, limit, 64 * len(own), width)
        found = [work[pack].sum() for pack in refined[first : first + num_ranks]]
        assert found == naive.works_of(own)
        assert max(found) <= max(before)
