"""Context parallelism of changing degree: its kernels do as their twins, and as what they follow prints."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packer_cli.plan.core.types import FILLER
from packer_cli.plan.kernels.durations import free_seconds
from packer_cli.plan.strategies.dynamic_cp.plan import packs_of_one_degree
from packer_cli.plan.strategies.dynamic_cp.rounds import (
    any_degree,
    form_rounds,
    place_freely,
    powers_of_two,
    rounds_between,
)
from packer_cli.plan.strategies.dynamic_cp.schedulers import cut_rounds, dynamic_rounds, pack_by_need
from tests.naive import dynamic_cp as naive

ON_A_RANK = 16


def degrees_of(highest, *, any_number=True):
    """Degrees, and the tokens of a pack at each."""
    degrees = np.array([*(any_degree if any_number else powers_of_two)(highest), highest])
    return degrees, degrees * ON_A_RANK


def falling(lengths, longest):
    return np.sort(np.minimum(lengths, longest))[::-1].astype(np.int64)


def seconds_of(kinds, work, tokens, degrees):
    return (work + 40.0 * tokens) / degrees[kinds] + 5 + 3 * (degrees[kinds] > 1)


lengths_of_all_sizes = st.lists(
    st.one_of(st.integers(1, ON_A_RANK), st.integers(1, 12 * ON_A_RANK)), min_size=1, max_size=40
)
machines = st.sampled_from([(1, 3), (4, 4), (4, 8), (5, 12), (8, 8), (8, 21), (12, 12), (12, 27), (16, 32)])


@given(lengths=lengths_of_all_sizes, machine=machines, shares_rows=st.booleans())
def test_packs_are_those_of_the_twin(lengths, machine, shares_rows):
    _, capacity = degrees_of(machine[0])
    own = falling(lengths, capacity[-1])
    pack_of, kinds = pack_by_need(own, capacity, shares_rows=shares_rows)
    assert (pack_of.tolist(), kinds.tolist()) == naive.pack_by_need(
        own.tolist(), capacity.tolist(), shares_rows=shares_rows
    )
    tokens = np.bincount(pack_of, weights=own)
    assert (tokens <= capacity[kinds]).all()
    if not shares_rows:
        assert (np.bincount(pack_of)[kinds > 0] == 1).all()


@given(lengths=lengths_of_all_sizes, machine=machines)
def test_rounds_are_those_of_the_twin(lengths, machine):
    degrees, capacity = degrees_of(machine[0])
    own = falling(lengths, capacity[-1])
    _, kinds = pack_by_need(own, capacity, shares_rows=False)
    seconds = np.random.default_rng(len(lengths)).permutation(len(kinds)) + 1.0
    found = form_rounds(degrees, kinds, seconds, machine[1])
    expected = naive.form_rounds(degrees.tolist(), kinds.tolist(), seconds.tolist(), machine[1])
    assert {k: (int(found.round[k]), int(found.first_rank[k])) for k in range(len(kinds))} == expected


@given(lengths=lengths_of_all_sizes, machine=machines, seed=st.integers(0, 99))
def test_packs_begin_where_ranks_are_free_first(lengths, machine, seed):
    """As the twin does; and the rounds are the fewest that keep each rank's order, so the step takes as long."""
    degrees, capacity = degrees_of(machine[0])
    _, kinds = pack_by_need(falling(lengths, capacity[-1]), capacity, shares_rows=False)
    degree = degrees[kinds]
    seconds = np.random.default_rng(seed).integers(1, 9, len(kinds)).astype(np.float64)
    order = np.argsort(-seconds, kind="stable")
    first_rank = place_freely(order, degree, seconds, machine[1])
    assert first_rank.tolist() == naive.place_freely(order.tolist(), degree.tolist(), seconds.tolist(), machine[1])

    found = rounds_between(order, degree, first_rank, machine[1])
    assert set(found.tolist()) == set(
        range(naive.least_rounds(order.tolist(), degree.tolist(), first_rank.tolist(), machine[1]))
    )
    ran = np.full((found.max() + 1, machine[1]), FILLER)
    for pack in order:
        own = slice(first_rank[pack], first_rank[pack] + degree[pack])
        before = ran[found[pack], own]
        others = np.unique(before[before != FILLER])
        assert len(others) == 0 or (before == others[0]).all()
        assert all(degree[each] == degree[pack] and first_rank[each] == first_rank[pack] for each in others)
        ran[found[pack], own] = pack
    by_round = order[np.argsort(found[order], kind="stable")]

    def of(packs):
        step = np.zeros(len(packs), dtype=np.int64)
        return free_seconds(step, first_rank[packs], degree[packs], seconds[packs], 1, machine[1])

    assert of(by_round) == of(order)


@given(lengths=lengths_of_all_sizes, machine=st.sampled_from([(4, 4), (5, 8), (8, 8), (8, 16)]))
def test_fcp_gives_ranks_as_its_program_does(lengths, machine):
    """The best degrees of each block, in rounds that take no longer together than full ones."""
    degrees, capacity = degrees_of(machine[0])
    own = falling(lengths, capacity[-1])
    pack_of, least = pack_by_need(own, capacity, shares_rows=True)
    work, tokens = (np.bincount(pack_of, weights=own**power).astype(np.int64) for power in (2, 1))
    seconds = seconds_of(np.arange(len(degrees))[:, None], work, tokens, degrees)
    kinds, found = cut_rounds(least, seconds, degrees, machine[1])
    assert (kinds >= least).all()
    total = 0.0
    for number in range(found.round.max() + 1):
        packs = np.flatnonzero(found.round == number)
        total += seconds[kinds[packs], packs].max()
        for block in set((found.first_rank[packs] // naive.BLOCK).tolist()):
            inside = packs[found.first_rank[packs] // naive.BLOCK == block]
            ranks = min(naive.BLOCK, machine[1] - block * naive.BLOCK)
            if len(inside) <= 4:
                best = naive.least_slowest(least[inside], seconds[:, inside].tolist(), degrees.tolist(), ranks)
                assert seconds[kinds[inside], inside].max() == best
    full = form_rounds(degrees, least, seconds[least, np.arange(len(least))], machine[1])
    slowest = [seconds[least, np.arange(len(least))][full.round == r].max() for r in range(full.round.max() + 1)]
    assert len(slowest) > 1 or total <= slowest[0]


@given(lengths=lengths_of_all_sizes, machine=machines)
def test_megatrons_rounds_are_those_of_the_twin(lengths, machine):
    degrees, capacity = degrees_of(machine[0], any_number=False)
    own = falling(lengths, capacity[-1])
    pack_of, kinds, found = dynamic_rounds(own, degrees, capacity, machine[1])
    expected = list(naive.dynamic_rounds(own.tolist(), degrees.tolist(), capacity.tolist(), machine[1]))
    for number, replicas in enumerate(expected):
        packs = np.flatnonzero(found.round == number)
        assert [(int(kinds[p]), np.flatnonzero(pack_of == p).tolist()) for p in packs] == replicas
        ends = found.first_rank[packs] + degrees[kinds[packs]]
        order = np.argsort(found.first_rank[packs])
        assert found.first_rank[packs][order].tolist() == [0, *ends[order][:-1].tolist()]
        assert ends.max() <= machine[1]
    assert found.round.max() + 1 == len(expected)


def test_a_long_sample_goes_to_more_ranks_than_it_needs_where_that_helps():
    """Two samples of a rank each on four: each takes two."""
    degrees, capacity = degrees_of(4, any_number=False)
    _, kinds, found = dynamic_rounds(np.array([16, 16]), degrees, capacity, 4)
    assert degrees[kinds].tolist() == [2, 2]
    assert found.round.tolist() == [0, 0]


@given(lengths=st.lists(st.integers(1, 64), min_size=1, max_size=40), replicas=st.integers(1, 5))
def test_packs_of_one_degree_fill_all_replicas(lengths, replicas):
    pack_of = packs_of_one_degree(np.array(lengths), 64, replicas)
    num = pack_of.max() + 1
    assert (np.bincount(pack_of, weights=lengths) <= 64).all()
    assert sorted(set(pack_of.tolist())) == list(range(num))
    assert num % replicas == 0 or num == len(lengths)
    next_fit, room = [], 0
    for length in lengths:
        next_fit.append((next_fit[-1] if next_fit else -1) + (length > room))
        room = (64 if length > room else room) - length
    stays = pack_of <= next_fit[-1]
    assert pack_of[stays].tolist() == np.array(next_fit)[stays].tolist()
    assert (np.bincount(pack_of)[next_fit[-1] + 1 :] == 1).all()


def test_the_last_samples_become_packs_of_their_own():
    assert packs_of_one_degree(np.array([4, 4, 4, 4, 4]), 8, 2).tolist() == [0, 0, 1, 3, 2]


@pytest.mark.parametrize("num_ranks", [8, 12, 64, 1000])
def test_a_rank_is_in_few_replicas(num_ranks):
    """Whatever the degrees: at most 32 process groups a GPU, one of them for tensor parallelism."""
    random = np.random.default_rng(num_ranks)
    degrees, _ = degrees_of(min(num_ranks, 200))
    replicas = set()
    for _ in range(200):
        kinds = random.integers(0, len(degrees), random.integers(1, 40))
        seconds = random.random(len(kinds))
        for first_rank in (
            form_rounds(degrees, kinds, seconds, num_ranks).first_rank,
            place_freely(np.argsort(-seconds), degrees[kinds], seconds, num_ranks),
        ):
            replicas |= set(zip(degrees[kinds].tolist(), first_rank.tolist(), strict=True))
    counted(replicas, num_ranks)
    degrees, capacity = degrees_of(min(num_ranks, 200), any_number=False)
    replicas = set()
    for _ in range(200):
        lengths = falling(random.integers(1, 1 + capacity[random.integers(len(capacity))], 40), capacity[-1])
        _, kinds, found = dynamic_rounds(lengths, degrees, capacity, num_ranks)
        replicas |= set(zip(degrees[kinds].tolist(), found.first_rank.tolist(), strict=True))
    counted(replicas, num_ranks)


def counted(replicas, num_ranks):
    held = np.zeros(num_ranks, dtype=np.int64)
    for degree, first in replicas:
        held[first : first + degree] += 1
    assert held.max() <= 31
