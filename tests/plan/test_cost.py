"""Balance by predicted work: reading a cost, its limits, and what a plan gains by it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packer_cli.config import PlanConfig, validate
from packer_cli.config.resolve import resolve
from packer_cli.plan.build import build_plan
from packer_cli.plan.core.check import check_plan
from packer_cli.plan.core.cost import Cost, parse_cost, require_exact
from packer_cli.plan.core.cut import make_pieces
from packer_cli.plan.core.groups import Group
from packer_cli.plan.core.metrics import least_works, measure

SEVEN_B = 24_576


@pytest.mark.parametrize(
    ("text", "linear"),
    [
        ("quadratic", 0),
        ("1,0", 0),
        ("1,24576", 24_576),
        ("2,49152", 24_576),
        ("4.2e-13, 1.03e-8", 24_524),
        ("3,10", 3),
        ("1,2147483646", 2**31 - 2),
    ],
)
def test_a_cost_is_read(text, linear):
    cost = parse_cost(text)
    assert cost.linear_tokens == linear
    assert parse_cost(str(cost)) == cost


KNOWN = "known: quadratic, profile, or two numbers A,B such as 1,24576"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", f"unknown cost ''; {KNOWN}"),
        ("linear", f"unknown cost 'linear'; {KNOWN}"),
        ("24576", f"unknown cost '24576'; {KNOWN}"),
        ("1,24_576", f"unknown cost '1,24_576'; {KNOWN}"),
        ("1,٢٤", f"unknown cost '1,٢٤'; {KNOWN}"),
        ("1,2,3", f"unknown cost '1,2,3'; {KNOWN}"),
        ("0,1", "cost A,B needs an A above 0 and a B of at least 0, got 0,1"),
        ("1,-1", "cost A,B needs an A above 0 and a B of at least 0, got 1,-1"),
        ("nan,1", "cost A,B needs an A above 0 and a B of at least 0, got nan,1"),
        ("1,inf", "cost A,B needs an A above 0 and a B of at least 0, got 1,inf"),
        (
            "1,3000000000",
            (
                "cost A,B needs a B of less than 2147483647 times A, got 1,3000000000; "
                "1,1000000000 already counts hardly anything but tokens"
            ),
        ),
    ],
)
def test_what_is_no_cost(text, message):
    with pytest.raises(ValueError) as error:
        parse_cost(text)
    assert str(error.value) == message


def test_work_that_might_not_be_exact_is_refused():
    groups = (Group(capacity=2**17, sp_size=8), Group(capacity=2**20))
    require_exact(2**31 - 2, groups, 1024)
    require_exact(0, [Group(capacity=2**31 - 1)], 2**20)
    with pytest.raises(ValueError) as error:
        require_exact(2**31 - 2, groups, 2048)
    assert str(error.value) == (
        "with a linear term of 2147483646 tokens, 2048 packs of 1048576 tokens may have more work than 2^62, which "
        "is not counted exactly; give a smaller B, or shorter groups"
    )


def mixed(num_short, num_long, longest, seed=0):
    generator = np.random.default_rng(seed)
    lengths = [
        generator.integers(longest // 64, longest // 4, num_short),
        generator.integers(longest // 4, longest, num_long),
    ]
    return np.concatenate(lengths).astype(np.int32)


def planned(lengths, cost, groups="32k:1,128k:8", gpus=16, **options):
    config = validate(PlanConfig, {"groups": groups, "gpus": gpus, "cost": cost, **options})
    rules = resolve(config).request
    pieces = make_pieces(lengths, np.arange(len(lengths)), rules.groups[-1].capacity, "split")
    plan = build_plan(pieces, rules)
    check_plan(plan)
    return plan


def arrays(plan):
    schedules = [array for schedule in plan.epochs for array in vars(schedule).values() if array is not None]
    return [array.tobytes() for array in (plan.packs.offsets, plan.packs.pieces, plan.packs.group, *schedules)]


@pytest.mark.parametrize(
    ("lengths", "options", "gain"),
    [
        # Long samples, and too few short ones to fill every pack to the token.
        (mixed(3000, 300, 131_072), {}, 0.6),
        (mixed(3000, 300, 131_072), {"balance": "sort"}, 0.9),
        (mixed(3000, 300, 131_072), {"fill": "greedy"}, 0.6),
        (mixed(20_000, 300, 4096), {"groups": "4k:1", "gpus": 32}, 0.5),
        (mixed(3000, 300, 131_072), {"packing": "sorted", "groups": "128k:8"}, 0.5),
    ],
)  # fmt: skip
def test_ranks_wait_less_by_the_cost_that_was_balanced(lengths, options, gain):
    by_squares, by_cost = (planned(lengths, cost, **options) for cost in ("quadratic", f"1,{SEVEN_B}"))
    before, after = (measure(plan, linear=SEVEN_B) for plan in (by_squares, by_cost))
    assert after.cbr < gain * before.cbr
    assert after.cbr_bound <= after.cbr
    assert after.imbalance < before.imbalance
    assert measure(by_cost).abr > measure(by_squares).abr  # Nothing is for nothing.


@pytest.mark.parametrize("packing", ["bfs", "spfhp"])
def test_a_cost_of_squares_alone_is_the_default(packing):
    lengths = mixed(2000, 100, 8192)
    options = {"groups": "1k:1,8k:4", "gpus": 8, "packing": packing, "global_tokens": "64k", "step_mix": "stratified"}
    plans = [planned(lengths, cost, **options) for cost in ("quadratic", "1,0", "7,3")]  # 3/7 of a token is none
    assert arrays(plans[0]) == arrays(plans[1]) == arrays(plans[2])


@pytest.mark.parametrize("packing", ["bfs", "spfhp"])
def test_only_the_ratio_of_both_terms_decides_and_nothing_is_random(packing):
    lengths = mixed(2000, 100, 8192)
    options = {"groups": "1k:1,8k:4", "gpus": 8, "packing": packing, "epochs": 2}
    plans = [planned(lengths, cost, **options) for cost in ("1,4096", "1,4096", "1e-13,4.096e-10", "1,4095.6")]
    assert arrays(plans[0]) == arrays(plans[1]) == arrays(plans[2]) == arrays(plans[3])
    assert arrays(plans[0]) != arrays(planned(lengths, "quadratic", **options))


@given(
    lengths=st.lists(st.integers(1, 200), min_size=1, max_size=60),
    num_gpus=st.sampled_from([2, 4, 8]),
    linear=st.sampled_from([1, 64, SEVEN_B, 2**31 - 2]),
)
def test_no_iteration_is_under_its_bound(lengths, num_gpus, linear):
    plan = planned(np.array(lengths, dtype=np.int32), f"1,{linear}", groups="200:1", gpus=num_gpus)
    least = least_works(plan, linear=linear)
    schedule = plan.epochs[0]
    length = plan.pieces.length[plan.packs.pieces].astype(np.int64)
    work = np.append(np.add.reduceat(length * (length + linear), plan.packs.offsets[:-1]), 0)
    for i in range(schedule.num_iterations):
        assert work[schedule.slot_pack[schedule.slot_iteration == i]].max() >= least[i]
    metrics = measure(plan, linear=linear)
    assert metrics.cbr_bound <= metrics.cbr + 1e-12


def test_costs_in_any_unit_have_the_same_ratio():
    assert Cost(quadratic=1e-14, linear=2.4576e-10).linear_tokens == SEVEN_B
    assert replace(Cost(), linear=0.4).linear_tokens == 0
