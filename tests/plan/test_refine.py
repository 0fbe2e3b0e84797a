"""Refining an iteration: its moves and exchanges against their twins, and what it promises."""

from __future__ import annotations

import itertools
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packer_cli.plan.core.bounds import least_max_work
from packer_cli.plan.core.cost import require_exact
from packer_cli.plan.core.csr import pack_tokens_and_work
from packer_cli.plan.core.groups import Group
from packer_cli.plan.kernels.exchange import Chosen, Pack, Pair, find_move
from packer_cli.plan.kernels.refine import even_samples, refine_packs
from tests.naive import exchange as naive

linears = st.sampled_from([0, 0, 1, 30, 500, 24_576, 2**31 - 2])
rows = st.one_of(
    st.lists(st.integers(1, 300), min_size=1, max_size=12),
    st.lists(st.integers(1, 40), min_size=1, max_size=70),
    st.lists(st.sampled_from([7, 8, 20, 21, 60, 61, 150]), min_size=1, max_size=40),
)


@settings(max_examples=300)
@given(one=rows, other=rows, extra=st.one_of(st.integers(0, 2), st.integers(0, 60)), linear=linears)
def test_find_move_equals_its_twin(one, other, extra, linear):
    both = sorted(one, reverse=True), sorted(other, reverse=True)
    heavy, light = sorted(both, key=lambda row: naive.work_of(row, linear), reverse=True)
    gap = naive.work_of(heavy, linear) - naive.work_of(light, linear)
    capacity = max(sum(heavy), sum(light)) + extra
    move = find_move(Pair(_pack(heavy, capacity, linear), _pack(light, capacity, linear), gap, linear))
    left, expected = naive.best_move(heavy, light, capacity - sum(heavy), capacity - sum(light), linear)
    assert move.left == left
    if expected is not None:
        assert (_places(move.heavy), _places(move.light)) == expected


def _pack(row: list[int], capacity: int, linear: int) -> Pack:
    lengths = np.array(row)
    sums = (np.concatenate([[0], np.cumsum(of_each)]) for of_each in (lengths, lengths * (lengths + linear)))
    return Pack(lengths, *sums, capacity - sum(row))


def _places(chosen: Chosen) -> frozenset[int]:
    run = {*range(chosen.first, chosen.first + chosen.num)}
    return frozenset((run - {chosen.but} | {chosen.other, chosen.second}) - {-1})


packings = st.lists(rows, min_size=1, max_size=10)


@settings(max_examples=150)
@given(packs=packings, num_ranks=st.integers(1, 5), extra=st.integers(0, 60), seed=st.integers(0, 9), linear=linears)
def test_refine_equals_its_twin(packs, num_ranks, extra, seed, linear):
    assert_refined_as_the_twin(packs, num_ranks, max(map(sum, packs)) + extra, seed, linear)


@given(
    packs=st.lists(st.lists(st.integers(1, 2**27), min_size=1, max_size=8), min_size=2, max_size=4),
    linear=st.sampled_from([0, 1, 2**29, 2**30 - 1]),
)
def test_refine_is_exact_up_to_the_most_work(packs, linear):
    """Python's integers do not overflow."""
    require_exact(linear, [Group(capacity=2**30)], 2)
    assert_refined_as_the_twin(packs, 2, 2**30, 0, linear)


def refined(offsets, pieces, lengths, num_packs, num_ranks, capacity, linear):
    even = partial(even_samples, lengths=lengths, capacity=capacity, linear=linear)
    refine_packs(offsets, pieces, 0, num_packs, num_ranks, even)


def assert_refined_as_the_twin(packs, num_ranks, capacity, seed, linear):
    lengths = np.array([length for pack in packs for length in pack], dtype=np.int32)
    offsets = np.concatenate([[0], np.cumsum([len(pack) for pack in packs])]).astype(np.int64)
    pieces = np.random.default_rng(seed).permutation(len(lengths))
    lengths[pieces] = lengths.copy()
    before = [pieces[a:b].tolist() for a, b in itertools.pairwise(offsets)]
    refined(offsets, pieces, lengths, len(packs), num_ranks, capacity, linear)
    after = [pieces[a:b].tolist() for a, b in itertools.pairwise(offsets)]
    for first in range(0, len(packs), num_ranks):
        own = before[first : first + num_ranks]
        work = [naive.work_of(lengths[pack].tolist(), linear) for pack in own]
        least = naive.work_bound([int(lengths[i]) for pack in own for i in pack], len(own), capacity, linear)
        longest = max(float(lengths[pack].max()) for pack in own)
        is_even = max(work) <= max(sum(work) / len(own), longest * (longest + linear)) * 1.0002
        must_wait = least * len(own) / sum(work) - 1
        limit = least * (1.0002 if must_wait <= 0.0002 else 1.0001)
        most_tries = (64 if must_wait < 0.1 else 8) * len(own)
        if len(own) > 1 and not is_even and max(work) > limit:
            own = [sorted(pack, key=lambda i: -lengths[i]) for pack in own]
            naive.refine(own, lengths.tolist(), capacity, limit, most_tries, linear)
        assert after[first : first + num_ranks] == own


@given(packs=packings, num_ranks=st.integers(1, 5), extra=st.integers(0, 60), linear=linears)
def test_refine_keeps_what_it_promises(packs, num_ranks, extra, linear):
    lengths = np.array([length for pack in packs for length in pack], dtype=np.int32)
    offsets = np.concatenate([[0], np.cumsum([len(pack) for pack in packs])]).astype(np.int64)
    pieces = np.arange(len(lengths))
    capacity = max(map(sum, packs)) + extra
    _, work = pack_tokens_and_work(offsets, pieces, lengths, linear)
    refined(offsets, pieces, lengths, len(packs), num_ranks, capacity, linear)
    assert sorted(pieces.tolist()) == list(range(len(lengths)))
    assert (np.diff(offsets) > 0).all()
    tokens, new_work = pack_tokens_and_work(offsets, pieces, lengths, linear)
    assert tokens.max() <= capacity
    for first in range(0, len(packs), num_ranks):
        own = slice(first, first + num_ranks)
        assert new_work[own].sum() == work[own].sum()
        assert new_work[own].max() <= work[own].max()


@pytest.mark.parametrize(
    ("packs", "capacity", "linear", "greatest"),
    [
        ([[60, 4], [32, 32]], 64, 0, 3616),  # nothing to exchange: the long sample bounds the work
        ([[50, 10], [20, 20, 20]], 60, 0, 2600),
        ([[30, 30, 30], [10] * 9], 90, 0, 2100),  # one for three
        ([[40, 20], [30, 30]], 60, 0, 2000),
        ([[40, 8], [20, 16]], 60, 1000, 44_720),  # 8 for nothing: tokens count most
        ([[40, 40, 20, 20], [30] * 4], 120, 0, 3800),  # two for two
        ([[50, 40, 1, 1], [14] * 6 + [8]], 92, 0, 3088),  # 40 and both short ones, for three
        ([[10] * 20, [2] * 100], 200, 0, 1200),  # half of them, for fifty
    ],
)
def test_refine_finds_the_exchange(packs, capacity, linear, greatest):
    lengths = np.array([length for pack in packs for length in pack], dtype=np.int32)
    offsets = np.concatenate([[0], np.cumsum([len(pack) for pack in packs])]).astype(np.int64)
    pieces = np.arange(len(lengths))
    refined(offsets, pieces, lengths, 2, 2, capacity, linear)
    assert pack_tokens_and_work(offsets, pieces, lengths, linear)[1].max() == greatest


@settings(max_examples=300)
@given(
    lengths=st.lists(st.integers(1, 100), max_size=40),
    num_ranks=st.integers(1, 9),
    extra=st.integers(0, 300),
    linear=linears,
)
def test_the_bound_equals_its_twin(lengths, num_ranks, extra, linear):
    capacity = max(lengths, default=1) + extra
    falling = np.array(sorted(lengths, reverse=True), dtype=np.int64)
    expected = naive.work_bound(lengths, num_ranks, capacity, linear)
    assert least_max_work(falling, num_ranks, capacity, linear) == expected


@settings(max_examples=300)
@given(
    lengths=st.lists(st.one_of(st.integers(1, 100), st.integers(40, 60)), min_size=1, max_size=8),
    num_ranks=st.integers(1, 4),
    extra=st.integers(0, 60),
    linear=linears,
)
def test_no_deal_is_under_the_bound(lengths, num_ranks, extra, linear):
    capacity = max(lengths) + extra
    least = naive.least_max_work(lengths, num_ranks, capacity, linear)
    falling = np.array(sorted(lengths, reverse=True), dtype=np.int64)
    if least:
        assert least_max_work(falling, num_ranks, capacity, linear) <= least


@pytest.mark.parametrize(
    ("lengths", "num_ranks", "capacity", "linear", "bound"),
    [
        ([60, 20, 20], 2, 100, 0, 3600),  # the longest
        ([30] * 8, 2, 120, 0, 3600),  # the mean
        ([70, 70, 20, 20, 20, 20], 2, 110, 0, 5700),  # full ranks: 70 stands with 40 tokens
        ([60, 45, 30, 15], 2, 80, 0, 3750),  # the other rank takes 80 of 150 tokens, so 10 of 15 stand beside 60
        ([51, 50, 50, 30, 10, 9], 2, 100, 0, 5000),  # beside 51 no more than 49 tokens: the other rank does the rest
        ([60, 45, 30, 15], 2, 80, 1000, 78_375),  # the mean, where tokens count most
        ([60, *[10] * 9], 2, 80, 10, 4400),  # 80 of 150 tokens on the other rank
        ([51, 50, 50, 30, 10, 9], 2, 100, 1000, 105_000),
    ],
)
def test_the_bound_by_hand(lengths, num_ranks, capacity, linear, bound):
    assert least_max_work(np.array(sorted(lengths, reverse=True)), num_ranks, capacity, linear) == bound
