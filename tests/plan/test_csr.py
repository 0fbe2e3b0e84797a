"""Packs as compressed arrays, and what checks and cuts pieces, against plain Python."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packer_cli.errors import PlanError
from packer_cli.plan.core import check, csr, segments
from packer_cli.plan.core.check import _is_permutation, check_pieces
from packer_cli.plan.core.cut import make_pieces
from packer_cli.plan.core.types import Pieces
from tests import naive

PACKS = st.lists(st.lists(st.integers(0, 999), min_size=1, max_size=5), min_size=1, max_size=8)


def arrays(packs):
    offsets = np.concatenate([[0], np.cumsum([len(pack) for pack in packs])]).astype(np.int64)
    return offsets, np.array([piece for pack in packs for piece in pack], dtype=np.int32)


@given(packs=PACKS, added=st.lists(st.lists(st.integers(0, 999), max_size=4), min_size=8, max_size=8))
def test_merged_packs_are_the_packs_and_what_was_added(packs, added):
    added = added[: len(packs)]
    merged = csr.merge_packs(*arrays(packs), *arrays(added))
    assert naive.packs_of(*merged) == [pack + more for pack, more in zip(packs, added, strict=True)]


def test_merging_holds_little_besides_its_result():
    offsets, pieces = np.arange(0, 100_001, 10), np.arange(100_000, dtype=np.int32)
    tracemalloc.start()
    csr.merge_packs(offsets, pieces, offsets, pieces)
    assert tracemalloc.get_traced_memory()[1] < 1.75 * 2 * pieces.nbytes
    tracemalloc.stop()


@given(packs=PACKS, data=st.data())
def test_selected_packs_stand_in_the_given_order(packs, data):
    chosen = data.draw(st.lists(st.sampled_from(range(len(packs))), unique=True))
    selected = csr.select_packs(*arrays(packs), np.array(chosen, dtype=np.int64))
    assert naive.packs_of(*selected) == [packs[k] for k in chosen]


@given(packs=PACKS, after=PACKS)
def test_copied_packs_come_before_others(packs, after):
    offsets, pieces = arrays(packs + after)
    pieces[: sum(map(len, packs))] = -1
    offsets[1 : len(packs)] = -1
    backwards = np.arange(len(packs), dtype=np.int32)[::-1].copy()
    csr.copy_packs(*arrays(packs), backwards, offsets, pieces)
    assert naive.packs_of(offsets, pieces) == packs[::-1] + after


@given(members=st.lists(st.integers(0, 9), max_size=40), block=st.integers(1, 50))
def test_members_are_renamed_in_place(members, block):
    array, names = np.array(members, dtype=np.int64), np.arange(10)[::-1] * 7
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(csr, "_BLOCK", block)
        csr.rename_members(array, names)
    assert array.tolist() == [names[member] for member in members]


@given(values=st.lists(st.integers(0, 20), max_size=20))
def test_a_permutation_is_told_from_what_is_none(values):
    values = [value % len(values) for value in values]
    assert _is_permutation(np.array(values, dtype=np.int64)) == (sorted(values) == list(range(len(values))))
    assert _is_permutation(np.array(sorted(range(len(values)), key=values.__getitem__), dtype=np.int64))


@given(
    lengths=st.lists(st.integers(1, 60), min_size=1, max_size=12),
    capacity=st.integers(1, 25),
    times=st.lists(st.integers(0, 2), min_size=12, max_size=12),
    data=st.data(),
)
def test_pieces_are_proved_in_any_order_and_broken_ones_are_not(lengths, capacity, times, data):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(check, "_BLOCK", data.draw(st.sampled_from([1, 2, 3, 5, 100]), label="block"))
        patch.setattr(segments, "_BLOCK", data.draw(st.sampled_from([1, 3, 100]), label="block of pieces"))
        prove_and_break(lengths, capacity, times, data)


def prove_and_break(lengths, capacity, times, data):
    array = np.array(lengths, dtype=np.int32)
    samples = np.repeat(np.arange(len(array)), times[: len(array)])
    pieces = make_pieces(array, samples, capacity, "split")
    check_pieces(pieces, array, samples, is_whole=True)
    assert check._are_chains(pieces, array, samples, is_whole=True)
    expected = [(s, b, min(capacity, lengths[s] - b)) for s in samples for b in range(0, lengths[s], capacity)]
    assert list(zip(pieces.sample, pieces.start, pieces.length, strict=True)) == expected
    order = np.array(data.draw(st.permutations(range(len(pieces)))), dtype=np.int64)
    mixed = Pieces(samples=pieces.sample[order], start=pieces.start[order], length=pieces.length[order])
    check_pieces(mixed, array, samples, is_whole=True)
    if len(pieces):
        j = data.draw(st.integers(0, len(pieces) - 1))
        change = data.draw(st.sampled_from(["sample", "start", "length"]))
        broken = {name: getattr(pieces, name).copy() for name in ("sample", "start", "length")}
        broken[change][j] = (broken[change][j] + 1) % len(array) if change == "sample" else broken[change][j] + 1
        if len(array) > 1 or change != "sample":
            with pytest.raises(PlanError):
                check_pieces(Pieces(samples=broken.pop("sample"), **broken), array, samples, is_whole=True)
