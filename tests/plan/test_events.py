"""Steps whose replicas meet at the end alone, beside a plain event simulation."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packer_cli.plan.kernels.durations import free_seconds
from tests.naive.simulate import events


@st.composite
def runs(draw):
    """Runs of replicas, (round, GPUs, seconds), of several steps; those of a round are apart."""
    gpus, steps = draw(st.integers(1, 8)), []
    for _ in range(draw(st.integers(1, 4))):
        step = []
        for number in range(draw(st.integers(1, 4))):
            first = 0
            while first < gpus:
                size = draw(st.integers(1, gpus - first))
                step.append((number, range(first, first + size), draw(st.floats(0, 10))))
                first += size
        steps.append(step)
    return gpus, steps


@given(runs())
def test_a_replica_waits_for_its_own_gpus_alone(drawn):
    gpus, steps = drawn
    of_step = np.repeat(np.arange(len(steps)), [len(step) for step in steps])
    flat = [run for step in steps for run in step]
    first, size = (np.array([value(own) for _, own, _ in flat]) for value in (lambda own: own.start, len))
    seconds = np.array([each for *_, each in flat])
    found = free_seconds(of_step, first, size, seconds, len(steps), gpus)
    assert found == pytest.approx([events(step) for step in steps])
    rounds = [max(each for k, _, each in step if k == number) for step in steps for number in {k for k, *_ in step}]
    assert found.sum() <= sum(rounds) * (1 + 1e-12), "waiting for nobody takes no longer than waiting for all"
