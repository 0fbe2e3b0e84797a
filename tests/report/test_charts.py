"""What charts draw, against plain Python over every piece, slot and iteration."""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packer_cli.config import PlanConfig
from packer_cli.config.resolve import resolve
from packer_cli.config.set_options import TrainConfig
from packer_cli.plan.build import build_plan
from packer_cli.plan.core.metrics import measure, slot_contents
from packer_cli.plan.core.types import FILLER, Pieces
from packer_cli.plan.figures import baseline_of
from packer_cli.report.charts.balance import (
    Choice,
    chart_of_frontier,
    chart_of_series,
    chart_of_work,
    step_series,
    work_of_ranks,
)
from packer_cli.report.charts.base import evenly
from packer_cli.report.charts.epochs import chart_of_epochs, chart_of_timeline, total_seconds
from packer_cli.report.charts.samples import chart_of_packs, charts_of_lengths, histogram, length_classes
from packer_cli.simulate.epoch import PARTS, simulate
from packer_cli.simulate.figures import Simulator
from packer_cli.simulate.timeline import timeline
from packer_cli.sizes import format_tokens
from tests.simulate.test_simulate import model


def planned(lengths, **options):
    config = PlanConfig(**{"groups": "64:1,512:4", "gpus": 4, **options})
    lengths = np.array(lengths, dtype=np.int32)
    rules = resolve(config).request
    pieces = Pieces(samples=None, start=np.zeros(len(lengths), dtype=np.int32), length=lengths)
    return build_plan(pieces, rules), rules


@pytest.fixture(scope="module")
def plan():
    generator = np.random.default_rng(0)
    return planned([*generator.integers(1, 64, 400), *generator.integers(65, 512, 60)])[0]


def layers(chart):
    """The rows of data of each layer."""
    return [layer["data"]["values"] for layer in chart.spec.get("layer", [chart.spec])]


def check(chart):
    """It is JSON, its fields are in its data, and its table is as wide as its header."""
    json.dumps(chart.spec, allow_nan=False)
    for layer in chart.spec.get("layer", [chart.spec]):
        fields = {each["field"] for each in layer["encoding"].values() if isinstance(each, dict) and "field" in each}
        for row in layer["data"]["values"]:
            assert fields <= row.keys()
    assert chart.rows
    assert {len(row) for row in chart.rows} == {len(chart.header)}


@given(lengths=st.lists(st.integers(1, 5000), min_size=1, max_size=50), kinds=st.lists(st.integers(0, 2), min_size=50))
def test_a_histogram_counts_everything_once(lengths, kinds):
    kinds = kinds[: len(lengths)]
    found = histogram(np.array(lengths, dtype=np.int32), np.array(kinds), 3)
    edges = found.edges.tolist()
    expected = Counter()
    for length, kind in zip(lengths, kinds, strict=True):
        (place,) = [j for j in range(len(edges) - 1) if edges[j] <= length < edges[j + 1]]
        expected[kind, place, "samples"] += 1
        expected[kind, place, "tokens"] += length
    for name, values in (("samples", found.samples), ("tokens", found.tokens)):
        for kind in range(3):
            assert values[kind].tolist() == [expected[kind, j, name] for j in range(len(edges) - 1)]
    assert found.samples[:, [0, -1]].sum(axis=0).all()


def test_bars_are_stacked_and_sources_beyond_seven_are_one(plan):
    _, chart = charts_of_lengths(plan.pieces.length, None, ["all"], plan)
    check(chart)
    bars, marks = layers(chart)
    assert sum(bar["count"] for bar in bars) == plan.pieces.length.sum()
    for bar in bars:
        assert bar["stop"] - bar["begin"] == bar["count"] > 0
        below = sum(other["count"] for other in bars if other["from"] == bar["from"] and other["of"] < bar["of"])
        assert bar["begin"] in (0, below) or bar["of"] == "512:4"
    assert marks == [{"at": 64}]  # 512 is where the axis ends.
    names = [f"source {number}" for number in range(10)]
    chart, tokens = charts_of_lengths(plan.pieces.length, np.arange(len(plan.pieces)) % 10, names, None)
    check(chart)
    check(tokens)
    assert chart.header[1:] == (*(f"source {number}" for number in range(6)), "others")
    assert sum(int(cell.replace(",", "")) for row in chart.rows for cell in row[1:]) == len(plan.pieces)


def test_classes_of_lengths_hold_every_length():
    for lengths in ([1], [7, 7, 7], [3, 90_000], [128] * 5 + [129], range(1, 3000)):
        bounds = length_classes(np.array(lengths, dtype=np.int32))
        assert list(bounds) == sorted(set(bounds))
        assert len(bounds) <= 6
        assert bounds[-1] >= max(lengths)
        assert all(math.log2(bound).is_integer() for bound in bounds)


@pytest.mark.parametrize("group", [0, 1])
def test_drawn_packs_hold_their_samples(plan, group):
    classes = length_classes(plan.pieces.length)
    chart = chart_of_packs(plan, group, classes, "packs", "Packs", most=10)
    check(chart)
    bars, _ = layers(chart)
    capacity, num_packs = plan.groups[group].capacity, (plan.packs.group == group).sum()
    packs = [int(row[0]) for row in chart.rows]
    assert len(packs) == min(10, num_packs)
    assert f"of {num_packs}, evenly" in chart.text
    names = [f"up to {format_tokens(bound)}" for bound in classes]
    for pack, row in zip(packs, chart.rows, strict=True):
        assert plan.packs.group[pack] == group
        own = plan.pieces.length[plan.packs.pieces[plan.packs.offsets[pack] : plan.packs.offsets[pack + 1]]]
        segments = [each for each in bars if each["id"] == pack]
        assert segments[0]["begin"] == 0
        assert segments[-1]["stop"] == own.sum() <= capacity
        assert [each["begin"] for each in segments[1:]] == [each["stop"] for each in segments[:-1]]
        assert sum(each["samples"] for each in segments) == len(own)
        large = sorted((length for length in own.tolist() if length >= capacity / 48), reverse=True)
        assert [each["tokens"] for each in segments[: len(large)]] == large
        for each in segments:
            assert each["tokens"] == each["stop"] - each["begin"]
            place = names.index(each["length"])
            assert (classes[place - 1] if place else 0) < each["tokens"] / each["samples"] <= classes[place]
        longest = next(name for name, bound in zip(names, classes, strict=True) if own.max() <= bound)
        assert row[1:] == (f"{len(own):,}", f"{own.sum():,}", longest)


def test_a_group_without_packs_is_not_drawn(plan):
    empty = replace(plan, packs=replace(plan.packs, group=np.zeros_like(plan.packs.group)))
    assert chart_of_packs(empty, 1, (64,), "packs", "Packs") is None


def test_work_of_ranks_is_that_of_their_packs(plan):
    found = work_of_ranks(plan, most=5)
    schedule = plan.epochs[0]
    for number, points in found.items():
        work = []
        for slot in np.flatnonzero(schedule.slot_iteration == number).tolist():
            pack, gpus = schedule.slot_pack[slot], plan.groups[schedule.slot_group[slot]].num_gpus
            own = plan.packs.pieces[plan.packs.offsets[pack] : plan.packs.offsets[pack + 1]] if pack != FILLER else []
            work += [sum(int(length) ** 2 for length in plan.pieces.length[own]) / gpus] * gpus
        mean = sum(work) / len(work)
        assert points == pytest.approx(sorted({value / mean for value in work}) if len(points) == 1 else
                                       sorted(value / mean for value in work))  # fmt: skip
    chart = chart_of_work(found, 3.0, "work", "Work", "Text.")
    check(chart)
    spans, points, *_ = layers(chart)
    for place, work in enumerate(found.values()):
        assert (spans[place]["least"], spans[place]["most"]) == pytest.approx((work[0], work[-1]), rel=1e-4)
        assert len([point for point in points if point["at"] == place]) == len(work)


def test_of_many_ranks_some_are_drawn():
    many, _ = planned([*range(1, 65)] * 20, groups="64:1", gpus=128, balance="none")
    found = work_of_ranks(many)
    assert max(map(len, found.values())) == 48
    assert all(work[-1] == work.max() and work[0] == work.min() for work in found.values())


@pytest.mark.parametrize("options", [{}, {"global_tokens": 2000}, {"cost": "1,50"}, {"align": 16}])
def test_the_series_has_the_means_of_the_figures(options):
    generator = np.random.default_rng(1)
    plan, rules = planned([*generator.integers(1, 64, 900), *generator.integers(65, 512, 200)], **options)
    slots, expected = slot_contents(plan), measure(plan, linear=rules.linear)
    abr = slots.ratios(slots.work)
    assert abr.mean() == pytest.approx(expected.abr)
    assert slots.ratios(slots.shared_tokens).mean() == pytest.approx(expected.dbr)
    assert 1 - slots.real_tokens.sum() / slots.row_length.sum() == pytest.approx(expected.pr)
    first_step, num_iterations, ratios = step_series(plan, rules.linear, most=7)
    assert len(first_step) == 7
    assert num_iterations.sum() == expected.num_iterations
    for name in ("ABR", "DBR", *(("CBR",) if rules.linear else ())):
        mean = np.average(ratios[name], weights=num_iterations)
        assert mean == pytest.approx(getattr(expected, name.lower()))
    step = plan.epochs[0].iteration_step
    for place, first in enumerate(first_step.tolist()):
        stop = [*first_step.tolist(), step[-1] + 1][place + 1]
        own = (step >= first) & (step < stop)
        assert num_iterations[place] == own.sum()
        assert ratios["ABR"][place] == pytest.approx(abr[own].mean())
        run = own[slots.iteration]
        assert ratios["PR"][place] == pytest.approx(1 - slots.real_tokens[run].sum() / slots.row_length[run].sum())
    check(chart_of_series(plan, rules.linear))


def test_charts_of_time_show_the_simulation(plan):
    rules = resolve(PlanConfig(groups="64:1,512:4", gpus=4)).request
    simulator = Simulator(model=model(), rules=TrainConfig(step_seconds=0.5))
    epochs = {
        "mine": simulator.figures(plan).overall,
        "naive": simulator.figures(baseline_of(plan, rules).plan).overall,
    }
    chart = chart_of_epochs(epochs, "mine", "Predicted.")
    check(chart)
    (bars,) = layers(chart)
    for name, epoch in epochs.items():
        end = max(bar["to"] for bar in bars if bar["name"] == name)
        unit = {"hours": 3600, "minutes": 60, "seconds": 1}[chart.header[1].split()[0]]
        assert end * unit == pytest.approx(epoch.seconds, rel=2e-3)
    times = simulate(plan, model(), pad_to="multiple", step_seconds=0.5)
    line = timeline(times, evenly(plan.epochs[0].num_iterations, 4))
    chart = chart_of_timeline(line, 4, total_seconds(line), "timeline", "Timeline", "Text.")
    check(chart)
    bars, _ = layers(chart)
    assert max(bar["to"] for bar in bars) == pytest.approx(total_seconds(line), rel=1e-5)
    area = sum((bar["to"] - bar["from"]) * (bar["end"] - bar["gpu"]) for bar in bars)
    assert area == pytest.approx(total_seconds(line) * 4, rel=1e-3)
    assert sum(float(cell.rstrip("%")) for cell in chart.rows[0][2:]) == pytest.approx(100, abs=0.5)
    assert set(chart.header[2:]) <= {bar["part"] for bar in bars}
    assert len(PARTS) >= len(chart.header) - 2


def test_of_many_gpus_the_first_are_drawn():
    plan, _ = planned([*range(1, 65)] * 20, groups="64:1", gpus=128)
    times = simulate(plan, model(), pad_to="multiple", step_seconds=0.0)
    line = timeline(times, np.array([0]))
    chart = chart_of_timeline(line, 128, total_seconds(line), "timeline", "Timeline", "Text.")
    assert chart.text == "Text. The first 64 of 128 GPUs."
    assert max(bar["end"] for bar in layers(chart)[0]) == 64


def test_the_frontier_names_the_users_plan_and_draws_it_on_top():
    choices = [
        Choice("sort", "balance", 0.1, 0.5),
        Choice("mine", "this plan", 0.1, 0.5),
        Choice("near", "strategy", 0.101, 0.501),
        Choice("naive", "strategy", 0.4, 0.1),
    ]
    chart = chart_of_frontier(choices)
    check(chart)
    points = layers(chart)[0]
    assert [each["name"] for each in points] == ["naive", "near", "mine"]
    assert {each["name"]: each["label"] for each in points} == {"naive": "naive", "near": "", "mine": "mine"}
    check(chart_of_frontier([Choice("mine", "this plan", 0.0, 0.0)]))
