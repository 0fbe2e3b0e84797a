"""The row of transformers' `batch_rebalance` has the sampler's own batches."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packer_cli.config import PlanConfig
from packer_cli.config.resolve import resolve
from packer_cli.plan.build import build_plan
from packer_cli.plan.core.check import check_plan
from packer_cli.plan.core.metrics import measure
from packer_cli.plan.strategies.by_group.batch_rebalance import balanced_counts
from tests.plan.test_build import whole


@pytest.mark.slow
@given(
    lengths=st.lists(st.integers(1, 3000), min_size=1, max_size=90),
    num_ranks=st.integers(1, 6),
    accumulation=st.integers(1, 4),
)
@settings(max_examples=150, deadline=None)
def test_batches_are_those_of_the_sampler(lengths, num_ranks, accumulation):
    pytest.importorskip("torch")
    utilities = pytest.importorskip("transformers.trainer_pt_utils")
    if not hasattr(utilities, "BatchRebalanceSampler"):
        pytest.skip("this transformers has no BatchRebalanceSampler")
    num_batches = num_ranks * accumulation
    lengths = sorted(lengths, reverse=True) + [1] * max(0, num_batches - len(lengths))
    sampler = utilities.BatchRebalanceSampler(lengths, len(lengths), num_ranks, accumulation, shuffle=False)
    wanted = [len(group) for group in sampler._balance_groups(list(enumerate(lengths)))]
    assert balanced_counts(np.array(lengths), num_batches, num_ranks).tolist() == wanted


def rules_for(**options):
    given = {"groups": "256:2", "gpus": 8, "strategy": "batch-rebalance", "global_tokens": 2000}
    return resolve(PlanConfig(**(given | options))).request


@given(lengths=st.lists(st.integers(1, 256), min_size=1, max_size=150), seed=st.integers(0, 99))
@settings(max_examples=40, deadline=None)
def test_every_plan_passes_the_checker(lengths, seed):
    rules = rules_for(seed=seed, epochs=2)
    plan = build_plan(whole(lengths), rules)
    check_plan(plan)
    assert plan.is_padded
    assert sorted(plan.packs.pieces.tolist()) == list(range(len(lengths)))
    assert plan.epochs[0].slot_row_length.max() <= 256
    of_step = max(4, round(2000 * len(lengths) / sum(lengths)))
    step = plan.epochs[0].step_of_packs(len(plan.packs))
    samples = np.bincount(step, weights=np.diff(plan.packs.offsets))
    assert samples.tolist() == [of_step] * (len(lengths) // of_step) + [len(lengths) % of_step] * bool(
        len(lengths) % of_step
    )


def test_ranks_wait_less_than_with_random_batches():
    lengths = np.minimum(256, np.random.default_rng(0).lognormal(3, 1, 4000).astype(np.int64) + 1)
    found = {}
    for name in ("padded", "batch-rebalance"):
        rules = rules_for(strategy=name)
        plan = build_plan(whole(lengths), rules)
        found[name] = measure(plan)
    assert found["batch-rebalance"].pr < found["padded"].pr / 3
    assert found["batch-rebalance"].dbr < found["padded"].dbr
