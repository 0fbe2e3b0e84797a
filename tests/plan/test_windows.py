"""Windows that grow by step: their lengths, in plans and after a change of the number of GPUs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packer_cli.config import PlanConfig
from packer_cli.config.resolve import resolve
from packer_cli.errors import ConfigError, PlanError
from packer_cli.plan.build import build_plan, short_packs
from packer_cli.plan.core.check import check_plan
from packer_cli.plan.core.groups import Group
from packer_cli.plan.core.schedule import StepRules
from packer_cli.plan.core.windows import Windows, parse_curriculum, windowed_work
from tests.plan.test_build import whole
from tests.requests import request


@given(
    growth=st.sampled_from(["linear", "doubling"]),
    start=st.integers(1, 500),
    more=st.integers(1, 5000),
    num_steps=st.integers(1, 60),
    first_step=st.integers(0, 70),
)
def test_windows_grow_from_the_start_to_whole_samples(growth, start, more, num_steps, first_step):
    full = start + more
    windows = Windows(growth=growth, start=start, full=full, num_steps=num_steps)
    found = windows.of_steps(num_steps + 3).tolist()
    assert found[0] == start
    assert found[num_steps:] == [0, 0, 0]
    grown = [window or full for window in found]
    assert grown == sorted(grown)
    if growth == "linear":
        assert grown[:num_steps] == [start + more * step // num_steps for step in range(num_steps)]
    else:
        assert all(window % start == 0 and (window // start).bit_count() == 1 for window in found if window)
    later = replace(windows, first_step=first_step).of_steps(5).tolist()
    assert later == (found + [0] * 80)[first_step : first_step + 5]


@given(length=st.integers(1, 300), window=st.integers(0, 320))
def test_work_is_that_of_the_segments(length, window):
    segments = [length]
    if window:
        segments = [min(window, length - start) for start in range(0, length, window)]
    assert windowed_work(np.array([length], dtype=np.int32), window).tolist() == [sum(s * s for s in segments)]


@pytest.fixture
def plan():
    lengths = np.random.default_rng(0).integers(1, 400, 300)
    windows = Windows(growth="linear", start=32, full=512, num_steps=8)
    steps = StepRules(global_tokens=3000, windows=windows)
    return build_plan(whole(lengths), request([Group(capacity=512)], 4, steps=steps, epochs=2)), steps


def test_only_the_first_epoch_has_windows(plan):
    plan, _ = plan
    check_plan(plan)
    first, second = (schedule.step_window.tolist() for schedule in plan.epochs)
    assert first[:9] == [32, 92, 152, 212, 272, 332, 392, 452, 0]
    assert not any(first[9:] + second)


def test_a_rest_goes_on_where_the_windows_were(plan):
    plan, steps = plan
    later = replace(steps, windows=replace(steps.windows, first_step=6))
    dealing = request([Group(capacity=512)], 2, steps=later)
    short = short_packs(plan.epochs[0], plan.packs, plan.groups)
    dealt = dealing.strategy.rest(plan, np.arange(20), short, dealing, 0)
    assert dealt.step_window[:3].tolist() == [392, 452, 0]


def test_a_step_without_a_window_is_seen(plan):
    plan, _ = plan
    broken = replace(plan.epochs[0], step_window=plan.epochs[0].step_window[1:])
    with pytest.raises(PlanError, match=r"^epoch 0: a step has no window$"):
        check_plan(replace(plan, epochs=(broken,)))


@pytest.mark.parametrize(
    ("text", "num_steps", "expected"),
    [
        ("short", 5, None),
        ("skyladder", 5, Windows(growth="linear", start=32, full=4096, num_steps=5)),
        ("skyladder:1k", 5, Windows(growth="linear", start=1024, full=4096, num_steps=5)),
        ("growlength", 7, Windows(growth="doubling", start=128, full=4096, num_steps=7)),
    ],
)
def test_a_curriculum_is_read(text, num_steps, expected):
    assert parse_curriculum(text, 4096, num_steps) == expected


@pytest.mark.parametrize(
    ("text", "num_steps", "message"),
    [
        ("long", 5, "unknown curriculum 'long'; known: short, skyladder[:START], growlength[:START]"),
        (
            "skyladder:4k",
            5,
            (
                "curriculum 'skyladder' begins with a window of 4096 tokens, which must be at least 1 and below the "
                "longest capacity, 4096; give another START, as in skyladder:64"
            ),
        ),
        (
            "growlength",
            0,
            "curriculum 'growlength' needs --curriculum-steps, the number of steps until samples are whole",
        ),
    ],
)
def test_a_wrong_curriculum_is_refused(text, num_steps, message):
    with pytest.raises(ConfigError) as error:
        resolve(PlanConfig(groups="1k:1,4k:1", gpus=1, curriculum=text, curriculum_steps=num_steps))
    assert str(error.value) == f"--curriculum: {message}"


@pytest.mark.parametrize(("capacity", "advised"), [(2, 1), (32, 16), (64, 32), (100, 50), (1024, 64)])
def test_the_advised_window_is_one_that_fits(capacity, advised):
    with pytest.raises(ConfigError) as error:
        resolve(PlanConfig(groups=f"{capacity}:1", gpus=1, curriculum="skyladder:1M", curriculum_steps=5))
    assert str(error.value).endswith(f"; give another START, as in skyladder:{advised}")
    resolve(PlanConfig(groups=f"{capacity}:1", gpus=1, curriculum=f"skyladder:{advised}", curriculum_steps=5))


def test_no_window_fits_a_capacity_of_one_token():
    with pytest.raises(ConfigError) as error:
        resolve(PlanConfig(groups="1:1", gpus=1, curriculum="skyladder:1", curriculum_steps=5))
    assert str(error.value) == "--curriculum: curriculum 'skyladder' needs a capacity of at least 2 tokens, got 1"
