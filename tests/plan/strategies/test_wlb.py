"""WLB-LLM's packers: those of the twins, and nothing lost on any documents."""

from __future__ import annotations

import itertools
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packer_cli.plan.core.check import check_pieces
from packer_cli.plan.core.streams import Stream, rng_state, shuffled
from packer_cli.plan.core.types import Pieces
from packer_cli.plan.packing import parse_packing
from packer_cli.plan.strategies.wlb.arrival import (
    Arrivals,
    arrive,
    imbalances,
    in_batches,
    mean_delay,
    pack_with_queues,
    tune_thresholds,
)
from packer_cli.plan.strategies.wlb.packers import (
    REGISTRY,
    GreedyOptions,
    SolverOptions,
    StepOptions,
    as_it_comes,
    pack_in_windows,
)
from packer_cli.plan.strategies.wlb.plan import _EXCHANGES, deal_steps
from tests.naive import wlb as naive
from tests.plan.test_build import whole

WINDOW = 12
LENGTHS = st.lists(st.integers(1, WINDOW), min_size=1, max_size=40)


def arrivals_of(lengths, num_micro_batches=2, window=WINDOW, linear=0, cut=None, seed=0):
    pieces = arrive(whole(lengths), cut or num_micro_batches * window, seed)
    return in_batches(pieces, num_micro_batches, window, linear=linear, seed=seed)


def micro_batches(packed, num_micro_batches, values):
    """A list of steps, each a list of micro-batches of the documents' values."""
    num_steps = packed.row_of.max() // num_micro_batches + 1
    steps = [[[] for _ in range(num_micro_batches)] for _ in range(num_steps)]
    for row, value in zip(packed.row_of.tolist(), values, strict=True):
        steps[row // num_micro_batches][row % num_micro_batches].append(value)
    return steps


@given(
    pieces=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 9), st.integers(1, WINDOW)), max_size=12),
    tokens=st.integers(1, 3 * WINDOW),
    seed=st.integers(0, 3),
)
def test_documents_arrive_in_a_seeded_order_and_are_cut_at_borders(pieces, tokens, seed):
    sample, start, length = np.array(pieces, dtype=np.int64).reshape(-1, 3).T
    found = arrive(Pieces(samples=sample, start=start, length=length.astype(np.int32)), tokens, seed)
    order = shuffled(len(pieces), rng_state(seed, Stream.ARRIVAL)).tolist()
    assert list(zip(found.sample, found.start, found.length, strict=True)) == naive.arrive(order, pieces, tokens)


@given(lengths=LENGTHS, align=st.sampled_from([1, 2, 3]), num_micro_batches=st.integers(1, 3))
def test_batches_hold_as_many_tokens_as_their_micro_batches(lengths, align, num_micro_batches):
    pieces = arrive(whole(lengths), num_micro_batches * WINDOW, 0, align)
    check_pieces(pieces, np.array(lengths, dtype=np.int32), np.arange(len(lengths)), is_whole=True)
    found = in_batches(pieces, num_micro_batches, WINDOW, align=align)
    tokens = np.add.reduceat(found.lengths, found.batches[:-1])
    assert (tokens[:-1] == num_micro_batches * WINDOW).all()
    assert (found.lengths % align == 0).all()
    falling = found.lengths[found.order]
    assert (falling[found.place] == found.lengths).all()
    in_each = np.split(found.places, found.batches[1:-1])
    assert all((np.diff(each) > 0).all() for each in in_each)


def test_the_queues_are_those_of_the_test_vector():
    """N = 2, S_max = 10, w = d^2, th = [6], batches [8, 3, 2, 1], [7, 4, 4]."""
    lengths = np.array([8, 3, 2, 1, 7, 4, 4], dtype=np.int32)
    arrivals = Arrivals(lengths=lengths, batches=np.array([0, 4, 7]), num_micro_batches=2, window=7)
    packed = pack_with_queues(arrivals, 10, np.array([6]))
    assert micro_batches(packed, 2, lengths.tolist()) == [[[3], [2, 1]], [[8], [7]], [[4], [4]]]
    assert packed.arrival.tolist() == [0] * 4 + [1] * 3
    assert packed.num_carried == 2
    assert mean_delay(arrivals, packed) == (8 + 4 + 4) / 29


@given(
    lengths=LENGTHS,
    num_micro_batches=st.integers(1, 4),
    room=st.integers(0, WINDOW),
    thresholds=st.lists(st.integers(1, WINDOW + 1), max_size=3, unique=True).map(sorted),
    linear=st.integers(0, 30),
)
@settings(max_examples=200)
def test_the_queues_are_those_of_the_twin(lengths, num_micro_batches, room, thresholds, linear):
    arrivals = arrivals_of(lengths, num_micro_batches, linear=linear)
    packed = pack_with_queues(arrivals, WINDOW + room, np.array(thresholds, dtype=np.int64))
    batches = [arrivals.lengths[a:b].tolist() for a, b in itertools.pairwise(arrivals.batches)]
    steps = naive.delay_queues(batches, num_micro_batches, WINDOW + room, thresholds, linear)
    number = {name: i for i, name in enumerate((b, i) for b, own in enumerate(batches) for i in range(len(own)))}
    wanted = [[sorted(map(number.get, own)) for own in step] for step in steps if any(step)]
    assert micro_batches(packed, num_micro_batches, range(len(number))) == wanted
    ran = np.cumsum([any(step) for step in steps]) - 1
    step = packed.row_of // num_micro_batches
    assert (step >= packed.arrival).all()
    for document, at in zip(number, packed.arrival.tolist(), strict=True):
        # The steps that ran before the batch came.
        assert at == (ran[document[0] - 1] + 1 if document[0] else 0)
    of_lengths = [[[int(arrivals.lengths[i]) for i in own] for own in one] for one in wanted]
    assert imbalances(arrivals, arrivals.lengths, packed.row_of).tolist() == pytest.approx(
        naive.imbalances(of_lengths, linear)
    )


@given(lengths=LENGTHS, num_micro_batches=st.integers(1, 3))
def test_original_packing_takes_rows_as_they_come(lengths, num_micro_batches):
    arrivals = arrivals_of(lengths, num_micro_batches, cut=WINDOW)
    packed = as_it_comes(arrivals, StepOptions(), WINDOW)
    rows = [sum(own) for step in micro_batches(packed, num_micro_batches, arrivals.lengths.tolist()) for own in step]
    full, rest = divmod(sum(lengths), WINDOW)
    assert rows[: full + bool(rest)] == [WINDOW] * full + [rest] * bool(rest)
    assert mean_delay(arrivals, packed) == 0


@given(lengths=LENGTHS, num_micro_batches=st.integers(1, 3))
def test_original_packing_keeps_whole_documents_whole(lengths, num_micro_batches):
    """Rows of consecutive documents; one begins a row only if it would reach over the end of the row before."""
    arrivals = arrivals_of(lengths, num_micro_batches)
    packed = as_it_comes(arrivals, StepOptions(), WINDOW)
    assert set(np.diff(packed.row_of, prepend=0)) <= {0, 1}
    own = [arrivals.lengths[packed.row_of == row].tolist() for row in range(packed.row_of[-1] + 1)]
    assert all(sum(row) <= WINDOW for row in own)
    assert all(sum(row) + following[0] > WINDOW for row, following in pairwise(own))
    assert mean_delay(arrivals, packed) == 0


@given(lengths=LENGTHS, num_micro_batches=st.integers(1, 3), num_batches=st.integers(1, 4), seed=st.integers(0, 3))
@settings(max_examples=100)
def test_greedy_windows_are_those_of_the_twin(lengths, num_micro_batches, num_batches, seed):
    arrivals = arrivals_of(lengths, num_micro_batches, seed=seed)
    packed = pack_in_windows(arrivals, GreedyOptions(batches=num_batches), WINDOW)
    steps = micro_batches(packed, num_micro_batches, range(len(packed.row_of)))
    assert all(any(step) for step in steps)
    length, left, carried, at = arrivals.lengths.tolist(), [], set(), 0
    firsts = [*range(0, arrivals.num_batches, num_batches), arrivals.num_batches]
    windows = list(itertools.pairwise(firsts))
    while windows or left:
        first, stop = windows.pop(0) if windows else (0, 0)
        num_steps = stop - first or min(num_batches, -(-sum(length[i] for i in left) // (num_micro_batches * WINDOW)))
        todo = left + list(range(arrivals.batches[first], arrivals.batches[stop]))
        rows = naive.greedy_window([length[i] for i in todo], num_steps * num_micro_batches, WINDOW)
        left = sorted([i for i, row in zip(todo, rows, strict=True) if row is None], key=lambda i: -length[i])
        carried |= set(left)
        wanted = [{i for i, row in zip(todo, rows, strict=True) if row == r} for r in set(rows) - {None}]
        num_steps = -(-len(wanted) // num_micro_batches)
        found = [set(own) for step in steps[at : at + num_steps] for own in step if own]
        assert sorted(map(sorted, found)) == sorted(map(sorted, wanted))
        at += num_steps
    assert at == len(steps)
    assert packed.num_carried == len(carried)


def test_the_program_is_more_even_than_greed():
    lengths = np.random.default_rng(0).integers(5, 45, 120)
    arrivals = arrivals_of(lengths, 2, 80)  # Small enough to solve in no time.
    greedy = pack_in_windows(arrivals, GreedyOptions(), WINDOW)
    exact = pack_in_windows(arrivals, SolverOptions(time_limit=60.0), WINDOW)
    before, after = (imbalances(arrivals, arrivals.lengths, each.row_of) for each in (greedy, exact))
    assert len(before) == len(after)
    assert (after <= before).all()
    assert (after < before).any()
    assert greedy.num_carried == exact.num_carried > 0


@given(
    times=st.lists(st.integers(1, 30), min_size=1, max_size=9),
    num_replicas=st.integers(1, 4),
    pp_size=st.integers(1, 4),
    spare=st.integers(0, 2),
)
@settings(max_examples=200)
def test_micro_batches_are_dealt_as_the_twin_deals_them(times, num_replicas, pp_size, spare):
    most = -(-len(times) // num_replicas) + spare
    found = deal_steps(
        np.zeros(len(times), dtype=np.int64), np.array(times, dtype=np.float64), num_replicas, most, pp_size
    )
    wanted = naive.deal(times, num_replicas, most, pp_size, _EXCHANGES)

    def slowest(replica_of):
        own = [[t for t, r in zip(times, replica_of, strict=True) if r == k] for k in range(num_replicas)]
        assert max(map(len, own)) <= most
        return max(naive.pipeline_seconds(each, pp_size) for each in own)

    assert slowest(found.tolist()) == pytest.approx(slowest(wanted))
    if num_replicas ** len(times) < 3000:
        every = itertools.product(range(num_replicas), repeat=len(times))
        best = min(slowest(x) for x in every if max(np.bincount(x)) <= most)
        assert best <= slowest(found.tolist()) <= 1.25 * best


def long_tail(num=4000, window=1000, seed=0):
    """Most documents short, a fifth of the tokens in those over half the window."""
    random = np.random.default_rng(seed)
    return np.minimum(window, random.lognormal(np.log(16), 1.5, num).astype(np.int64) + 1)


def test_tuned_thresholds_even_out_within_the_bound():
    arrivals = arrivals_of(long_tail(), 4, 1000, linear=200)
    row_of = pack_with_queues(arrivals, 2000, np.array([], dtype=np.int64)).row_of
    without = imbalances(arrivals, arrivals.lengths, row_of).mean()
    delays, means = [], []
    for most_delay in (0.05, 0.5, 5.0):
        packed = pack_with_queues(arrivals, 2000, tune_thresholds(arrivals, 2000, most_delay))
        delays.append(mean_delay(arrivals, packed))
        means.append(imbalances(arrivals, arrivals.lengths, packed.row_of).mean())
        assert delays[-1] <= most_delay * 1.2  # The sample is a part of the data.
    assert delays == sorted(delays)
    assert means == sorted(means, reverse=True)
    assert means[1] < 1 + (without - 1) / 3
    for number in range(4):
        assert len(tune_thresholds(arrivals, 2000, 0.5, number)) == number


def test_a_higher_capacity_is_tuned_as_if_it_were_the_only_one():
    """Thresholds with which no micro-batch got full are not tried again."""
    lengths, full = long_tail(), set()
    arrivals = arrivals_of(lengths, 4, 1000, linear=200)
    for capacity in (1000, 1500, 2000, 4000):
        alone = tune_thresholds(arrivals_of(lengths, 4, 1000, linear=200), capacity, 0.5)
        assert tune_thresholds(arrivals, capacity, 0.5).tolist() == alone.tolist()
        full.add(pack_with_queues(arrivals, capacity, alone).is_full)
    assert full == {False, True}
    assert 0 < len({capacity for capacity, *_ in arrivals.sample.tried.values()}) < 4


def test_a_bound_that_no_queue_keeps_means_no_queue():
    arrivals = arrivals_of([100, *[1] * 50, 90, *[1] * 50], 2, 100)
    assert tune_thresholds(arrivals, 200, 0.0).tolist() == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("bfs", "unknown packing algorithm 'bfs'; known: delay, original, greedy, solver"),
        ("delay:queues=4", "option 'queues' of packing 'delay' must be auto or 0 to 3, got '4'"),
        ("delay:delay=-1", "option 'delay' of packing 'delay' must be a number of steps, at least 0, got -1.0"),
        ("delay:thresholds=8k+4k", "option 'thresholds' of packing 'delay' must rise, got '8k+4k'"),
        (
            "delay:thresholds=8k,queues=2",
            "option 'thresholds' of packing 'delay' makes 1 queues, not 2; leave out 'queues'",
        ),
        (
            "delay:thresholds=much",
            "option 'thresholds' of packing 'delay' must be auto or tokens such as 32k+64k, got 'much'",
        ),
        ("delay:s_max=0", "option 's_max' of packing 'delay' must be auto or tokens such as 192k, got '0'"),
        ("greedy:batches=0", "option 'batches' must be at least 1 and at most 1048575, got 0"),
        ("solver:time_limit=0", "option 'time_limit' must be over 0 and at most 86400, got 0.0"),
    ],
)
def test_wrong_options(text, message):
    with pytest.raises(ValueError) as error:
        parse_packing(text, REGISTRY)
    assert str(error.value) == message
