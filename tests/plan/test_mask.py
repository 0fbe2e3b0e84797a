"""A causal mask over whole rows: what counts as attention work, and what a plan evens out by it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packer_cli.plan.build import build_plan
from packer_cli.plan.core.check import check_plan
from packer_cli.plan.core.cost import linear_of_tokens, require_exact
from packer_cli.plan.core.groups import Group
from packer_cli.plan.core.metrics import measure
from packer_cli.plan.core.segments import measure_sparsity
from tests import naive
from tests.plan.test_build import whole
from tests.plan.test_sparsity import packs, plan_of
from tests.requests import request

K = 1024


def causal_rules(groups, num_gpus, packing="bfs", **options):
    return request(groups, num_gpus, packing, mask="causal", **options)


def test_work_is_that_of_whole_rows():
    """{1K, 1K, 1K, 1K} and {2K}: equal work with document masks, four times as much in one row with a causal one."""
    lengths = [K] * 4 + [2 * K]
    plan = build_plan(whole(lengths), request([Group(capacity=4 * K)], 2, "next-fit"))
    plan = replace(plan, packs=replace(plan.packs, offsets=np.array([0, 4, 5]), pieces=np.arange(5)))
    assert measure(plan).abr == 0
    figures = measure(replace(plan, mask="causal"))
    assert figures.abr == pytest.approx(1 - (16 + 4) / (2 * 16))
    # Three rows of 1K samples and the 2K one could have 3K each.
    assert figures.abr_bound == pytest.approx(max(0, 1 - (16 + 4) / (2 * 9)))
    assert measure(replace(plan, mask="causal"), linear=K).cbr == pytest.approx(1 - (16 + 4 + 4 + 2) / (2 * 20))


@given(
    lengths=st.lists(st.integers(1, 200), min_size=1, max_size=80), packing=st.sampled_from(["bfs", "bfd", "spfhp"])
)
def test_plans_hold_and_no_bound_is_above_what_is_reached(lengths, packing):
    plan = build_plan(whole(lengths), causal_rules([Group(capacity=100), Group(capacity=200)], 4, packing))
    check_plan(plan)
    figures = measure(plan, linear=50)
    assert figures.abr_bound <= figures.abr + 1e-12
    assert figures.cbr_bound <= figures.cbr + 1e-12


def test_it_evens_out_tokens():
    """Long samples beside short ones of as many tokens: even for a causal mask, and uneven in squares."""
    lengths = np.concatenate([np.full(8, 2000), np.full(8, 3000), np.full(800, 30)])
    groups = [Group(capacity=4096)]
    documents = build_plan(whole(lengths), request(groups, 12, "bfs", fill="balanced"))
    rows = build_plan(whole(lengths), causal_rules(groups, 12, fill="balanced"))
    as_rows = [measure(replace(plan, mask="causal")).abr for plan in (documents, rows)]
    assert as_rows[1] < 0.06 < 0.18 < as_rows[0]


@given(packs, st.integers(1, 9))
def test_a_causal_row_leaves_out_what_follows(members, block):
    found = measure_sparsity(replace(plan_of(members), mask="causal"), None, block)
    expected = naive.sparsity([[sum(pack)] for pack in members], block)
    assert (found.token_sparsity, found.block_sparsity, found.flex_share) == pytest.approx(expected, abs=1e-12)


@given(
    capacity=st.integers(1, 2**31 - 1), num_gpus=st.sampled_from([1, 8, 1024, 2**20]), sp_size=st.sampled_from([1, 8])
)
def test_its_linear_term_is_counted_exactly(capacity, num_gpus, sp_size):
    groups = [Group(capacity=capacity, sp_size=min(sp_size, num_gpus))]
    try:
        require_exact(1, groups, num_gpus)
    except ValueError:
        return  # No linear term is.
    require_exact(linear_of_tokens(groups, num_gpus), groups, num_gpus)
