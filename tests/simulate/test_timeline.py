"""Timelines and traces against the simulated epoch that they show."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packer_cli.plan.strategies.assemble import run_freely
from packer_cli.simulate.epoch import PARTS, simulate
from packer_cli.simulate.timeline import SCHEDULE, iterations_of_steps, timeline, trace_events
from tests.simulate.test_simulate import model, plans, with_layout

settings = {"pad_to": "row", "step_seconds": 1.5}


@st.composite
def trained(draw):
    """Plans in lockstep or with free replicas, some of them pipelines."""
    is_free = draw(st.booleans())  # Such replicas stand by falling group.
    plan = with_layout(draw(plans(is_sorted=is_free or None)), pp=draw(st.integers(1, 3)), is_cp=draw(st.booleans()))
    if is_free:
        schedule = run_freely(plan.epochs[0], len(plan.groups), np.arange(len(plan.packs)) % 3 + 1.0)
        plan = replace(plan, lockstep=1, epochs=(schedule,))
    return plan


def line_of(plan, iterations=None):
    """The events of the timeline."""
    return timeline_of(plan, iterations).events


def timeline_of(plan, iterations=None):
    times = simulate(plan, model(), **settings)
    return timeline(times, np.arange(plan.epochs[0].num_iterations) if iterations is None else iterations)


@given(plan=trained())
def test_each_gpu_is_busy_from_the_start_to_the_end(plan):
    line, simulation = line_of(plan), simulate(plan, model(), **settings)
    for gpu in range(plan.num_gpus):
        own = (line.first_gpu <= gpu) & (gpu < line.first_gpu + line.num_gpus)
        order = np.argsort(line.start[own], kind="stable")
        start, stop = line.start[own][order], (line.start + line.seconds)[own][order]
        assert start[0] == pytest.approx(0)
        assert start[1:] == pytest.approx(stop[:-1])
        assert stop[-1] == pytest.approx(simulation.seconds + simulation.overlap.sum())
    split = np.bincount(line.part, weights=line.seconds * line.num_gpus, minlength=len(PARTS))
    expected = simulation.gpu_seconds.sum(axis=0)  # Iterations that overlap are drawn one after another.
    expected[PARTS.index("waiting")] += simulation.overlap.sum() * plan.num_gpus
    assert split == pytest.approx(expected, abs=1e-9)


@given(plan=trained(), seed=st.integers(0, 5))
def test_chosen_iterations_are_those_of_the_whole(plan, seed):
    whole, num = line_of(plan), plan.epochs[0].num_iterations
    chosen = np.flatnonzero(np.random.default_rng(seed).random(num) < 0.6)
    if not len(chosen):
        chosen = np.array([num - 1])
    some = line_of(plan, chosen)
    for number in chosen.tolist():
        pairs = [(line, line.iteration == number) for line in (whole, some)]
        (first, own), (second, other) = pairs
        for name in ("part", "seconds", "first_gpu", "num_gpus", "slot"):
            assert getattr(first, name)[own].tolist() == getattr(second, name)[other].tolist()


@given(plan=trained(), num_steps=st.integers(1, 4), gpus_per_node=st.integers(1, 8))
def test_a_trace_is_complete_and_well_formed(plan, num_steps, gpus_per_node):
    simulation, schedule = simulate(plan, model(), **settings), plan.epochs[0]
    line = timeline_of(plan, iterations_of_steps(plan, num_steps))
    events = list(trace_events(plan, line, gpus_per_node))
    for event in events:
        assert {"ph", "name", "pid", "tid", "args"} <= event.keys()
        assert type(event["pid"]) is type(event["tid"]) is int
        if event["ph"] == "M":
            assert event["name"] in ("process_name", "process_sort_index", "thread_name", "thread_sort_index")
        else:
            assert event["ph"] == "X"
            assert event["ts"] >= 0
            assert event["dur"] >= 0
            assert isinstance(event["cat"], str)
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert names == {
        (SCHEDULE, 0): "steps",
        (SCHEDULE, 1): "iterations",
        **{(1 + gpu // gpus_per_node, gpu): f"GPU {gpu}" for gpu in range(plan.num_gpus)},
    }
    complete = [event for event in events if event["ph"] == "X"]
    steps = [event for event in complete if event["cat"] == "step"]
    shown = min(num_steps, schedule.num_steps)
    assert [event["name"] for event in steps] == [f"step {step}" for step in range(shown)]
    drawn = (simulation.step_seconds + simulation.overlap)[:shown]
    assert [event["dur"] / 1e6 for event in steps] == pytest.approx(drawn, abs=1e-8)
    iterations = [event for event in complete if event["cat"] == "iteration"]
    expected = simulation.iteration_seconds[schedule.iteration_step < num_steps]
    assert [event["dur"] / 1e6 for event in iterations] == pytest.approx(expected, abs=1e-8)
    total = sum(drawn)
    for gpu in range(plan.num_gpus):
        parts = [event for event in complete if event["tid"] == gpu and event["cat"] in PARTS and event["pid"]]
        assert sum(event["dur"] for event in parts) / 1e6 == pytest.approx(total, abs=1e-7)
        for event in (e for e in complete if e["tid"] == gpu and e["cat"] == "micro-batch"):
            begin, end = event["ts"], event["ts"] + event["dur"]
            inside = [e for e in parts if begin <= e["ts"] and e["ts"] + e["dur"] <= end + 1e-3]
            own = [e for e in inside if e["args"].get("pack") == event["args"].get("pack") and "group" in e["args"]]
            assert sum(e["dur"] for e in own) == pytest.approx(event["dur"], abs=0.02)


def test_micro_batches_say_what_they_hold():
    from tests.simulate.test_simulate import GROUPS, make_plan

    plan = make_plan(GROUPS[:2], [[(0, [10, 5]), (0, []), (1, [30])], [(1, [20]), (1, [7])]], steps=[0, 1])
    events = list(trace_events(plan, timeline_of(plan), 2))
    batches = [event for event in events if event.get("cat") == "micro-batch"]
    found = {(event["name"], event["tid"], event["pid"]) for event in batches if event["args"]["iteration"] == 0}
    assert found == {("pack 0", 0, 1), ("filler", 1, 1), ("pack 1", 2, 2), ("pack 1", 3, 2)}
    (first,) = (event for event in batches if event["name"] == "pack 0")
    assert first["args"] == {"step": 0, "iteration": 0, "group": "40:1", "pack": 0, "tokens": 15, "samples": 2}
