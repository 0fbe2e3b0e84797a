"""The shape of HBP's table 6 holds on lengths like those it used, so the metrics mean what the paper's do."""

from __future__ import annotations

import pytest

from tests.benchmark.paper import HBP, HIERARCHICAL, NAIVE, OURS, Mix, plan_metrics


@pytest.fixture(scope="module")
def lengths():
    # Half of it: with fewer iterations, neighbours in the sorted order are less alike.
    return Mix().lengths(share=0.5)


def test_the_mix_is_what_its_grounds_say():
    mix = Mix()
    lengths = mix.lengths()
    assert len(lengths) == mix.num_chats + mix.num_long
    assert lengths.min() >= 1
    assert lengths.max() <= mix.longest_long
    assert (mix.lengths() == lengths).all()
    for family in ("gamma", "lognormal"):
        chats = Mix(num_long=0, family=family).lengths()
        assert chats.mean() == pytest.approx(mix.mean_chat, rel=0.01)
        assert chats.std() == pytest.approx(mix.variation * chats.mean(), rel=0.01)
        assert (chats > mix.longest_chat / 2).mean() < 1e-4


def test_random_batches_are_those_of_table_3(lengths):
    """What the mix is fitted to, and what follows: DBR of the same batches, and the sorted ones."""
    short = lengths[lengths <= 4096]
    metrics = plan_metrics(short, {"strategy": "naive", "packing": "padded:batch=3", "groups": "12k:1"})
    assert metrics.pr == pytest.approx(0.416, abs=0.002)
    assert metrics.ave_t == pytest.approx(2400, abs=50)
    assert metrics.dbr == pytest.approx(0.54, abs=0.04)
    one = plan_metrics(lengths, {**NAIVE, "packing": "padded:batch=1"})
    assert one.pr == 0
    assert one.ave_t == pytest.approx(900, abs=50)
    of_like_length = {"balance": "sort", "packing": "padded:order=sorted,batch=3"}
    metrics = plan_metrics(short, {**of_like_length, "groups": "12k:1"})
    assert max(metrics.pr, metrics.dbr) < 0.005


def test_one_group_waits_half_of_the_time_and_always_communicates(lengths):
    metrics = plan_metrics(lengths, NAIVE)
    assert 0.4 < metrics.abr < 0.6
    assert metrics.cr == 1


def test_a_short_group_of_its_own_communicates_less_and_waits_less(lengths):
    metrics = plan_metrics(lengths, HIERARCHICAL)
    assert 0.25 < metrics.abr < 0.9 * plan_metrics(lengths, NAIVE).abr  # 0.41; the paper: 0.29.
    assert metrics.cr == pytest.approx(0.173, abs=0.02)
    # All tokens of samples over 16K communicate, and what fills their packs.
    assert metrics.cr > lengths[lengths > 16_384].sum() / lengths.sum()


@pytest.mark.parametrize("scheme", [HBP, OURS], ids=["hbp", "ours"])
def test_balanced_iterations_hardly_wait(lengths, scheme):
    metrics = plan_metrics(lengths, scheme)
    assert 0 < metrics.abr < 0.005
    assert metrics.cr == pytest.approx(0.173, abs=0.02)
    assert metrics.num_samples == len(lengths)
