"""Pipelines by recurrence take as long as by an event simulation."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packer_cli.plan.kernels.durations import pipeline_seconds
from tests.naive import pipeline as naive


def run(seconds, stages, parts=1, forward=1 / 3):
    times = np.array(seconds, dtype=np.float64)
    shares = np.broadcast_to(np.float64(forward), times.shape).copy()
    offsets = np.array([0, len(times)])
    return float(pipeline_seconds(offsets, times, shares, np.array([stages]), np.array([parts]))[0])


@given(
    st.lists(st.tuples(st.integers(1, 50), st.sampled_from([0.25, 1 / 3, 0.5])), min_size=1, max_size=20),
    st.integers(1, 6),
    st.integers(1, 3),
)
def test_it_is_what_an_event_simulation_gives(micro_batches, stages, parts):
    seconds, forward = (list(map(float, column)) for column in zip(*micro_batches, strict=True))
    if stages == 1:
        parts = 1
    times = np.array(seconds)
    found = pipeline_seconds(
        np.array([0, len(times)]), times, np.array(forward), np.array([stages]), np.array([parts])
    )
    assert found[0] == pytest.approx(naive.pipeline_seconds(seconds, forward, stages, parts))


@pytest.mark.parametrize(("stages", "parts"), [(1, 1), (4, 1), (8, 1), (4, 2), (8, 4)])
def test_equal_micro_batches_take_the_closed_form(stages, parts):
    assert run([1.0] * 2 * stages, stages, parts) == pytest.approx(2 * stages + (stages - 1) / parts)


def test_uneven_ones_in_random_order_take_longer_than_the_closed_form():
    """Lognormal, sigma .7: 1.07 and 1.22 times it on 4 stages, 1.15 on 8; longest first at most as long."""
    rng = np.random.default_rng(0)
    for stages, number, least, most in ((4, 8, 1.03, 1.12), (4, 16, 1.15, 1.28), (8, 16, 1.08, 1.22)):
        random, sorted_ = [], []
        for _ in range(300):
            times = rng.lognormal(0, 0.7, number)
            closed = times.sum() + (stages - 1) * times.max()
            random.append(run(times, stages) / closed)
            sorted_.append(run(np.sort(times)[::-1], stages) / closed)
        assert least < np.mean(random) < most
        assert 0.9 < np.mean(sorted_) <= 1.0 + 1e-9


def test_several_pipelines_at_once():
    times = np.array([1.0, 2.0, 3.0, 4.0])
    found = pipeline_seconds(np.array([0, 2, 2, 4]), times, np.full(4, 0.5), np.array([1, 3, 2]), np.array([1, 1, 1]))
    assert found[:2].tolist() == [3.0, 0.0]
    assert found[2] == pytest.approx(naive.pipeline_seconds([3.0, 4.0], [0.5, 0.5], 2, 1))
