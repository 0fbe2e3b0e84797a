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
    chats = Mix(num_long=0).lengths()
    assert chats.mean() == pytest.approx(mix.mean_chat, rel=0.01)
    assert mix.longest_chat / 2 < chats.max() <= mix.longest_chat
    assert (mix.lengths() == lengths).all()


def test_one_group_waits_half_of_the_time_and_always_communicates(lengths):
    metrics = plan_metrics(lengths, NAIVE)
    assert 0.4 < metrics.abr < 0.6
    assert metrics.cr == 1


def test_a_short_group_of_its_own_communicates_less_and_waits_less(lengths):
    metrics = plan_metrics(lengths, HIERARCHICAL)
    assert 0.24 < metrics.abr < 0.34  # 0.29 at full size and in the paper.
    assert metrics.abr < 0.85 * plan_metrics(lengths, NAIVE).abr
    assert 0.12 < metrics.cr < 0.22
    # All tokens of samples over 16K communicate, and what fills their packs.
    assert metrics.cr > lengths[lengths > 16_384].sum() / lengths.sum()


@pytest.mark.parametrize("scheme", [HBP, OURS], ids=["hbp", "ours"])
def test_balanced_iterations_hardly_wait(lengths, scheme):
    metrics = plan_metrics(lengths, scheme)
    assert 0 < metrics.abr < 0.005
    assert 0.12 < metrics.cr < 0.22
    assert metrics.num_samples == len(lengths)
