"""Refining an iteration of items: the exchanges of its twin, and what they keep."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from packer_cli.plan.kernels.balance.items import refine_items
from packer_cli.plan.strategies.by_group.items import ItemSizes, group_units
from tests.naive import items as naive

loads = st.tuples(st.integers(1, 400), st.integers(1, 30), st.integers(0, 30))
packs_of_items = st.lists(st.lists(loads, min_size=1, max_size=24), min_size=1, max_size=6)


@settings(max_examples=200)
@given(packs_of_items, st.integers(0, 40), st.integers(1, 4))
def test_refine_equals_its_twin(packs, extra, num_ranks):
    packs = [sorted(pack, key=lambda item: -item[0]) for pack in packs]
    capacity = max(sum(item[k] for item in pack) for pack in packs for k in (1, 2)) + extra
    work, sizes, paths = np.array([item for pack in packs for item in pack]).T
    offsets = np.concatenate([[0], np.cumsum([len(pack) for pack in packs])])
    pieces = np.arange(len(work), dtype=np.int32)
    refine_items(offsets, pieces, (sizes, paths, work), 0, len(packs), num_ranks, capacity)
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


@given(st.lists(st.tuples(st.integers(1, 40), st.integers(0, 40)), max_size=20), st.data())
def test_units_are_of_two_kinds_and_hold_each_piece_once(items, data):
    size, paths = np.array(items, dtype=np.int64).reshape(-1, 2).T
    own = np.array([k for k in range(len(items)) if data.draw(st.booleans())], dtype=np.int32)
    units, first, second = ItemSizes(size, size, paths, size, size).joined(own, 64)
    order = np.array(data.draw(st.permutations(range(len(units)))), dtype=np.int32)
    middle = len(order) // 2
    offsets, pieces = group_units(np.array([0, middle, len(order)]), order, first, second)
    assert sorted(pieces.tolist()) == own.tolist()
    assert offsets.tolist() == [0, middle + int((second[order[:middle]] >= 0).sum()), len(own)]
    for unit, one, other in zip(units.tolist(), first.tolist(), second.tolist(), strict=True):
        if other < 0:
            assert unit == max(size[one], paths[one])
        else:
            assert paths[one] > size[one]
            assert size[other] > paths[other]
            assert unit == max(size[one] + size[other], paths[one] + paths[other]) <= 32
