"""Wrapping, which cuts samples anywhere: equality with its twin, and whole, full plans."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packer_cli.plan.build import build_plan
from packer_cli.plan.core.check import check_pieces, check_plan
from packer_cli.plan.core.cut import kept_samples, make_pieces
from packer_cli.plan.core.groups import Group
from packer_cli.plan.core.mixture import weighted_samples
from packer_cli.plan.core.streams import rng_state
from packer_cli.plan.packing import REGISTRY
from tests import naive
from tests.plan.packing import run
from tests.requests import request


@st.composite
def cut_pieces(draw):
    """Pieces as `make_pieces` makes them, with weights, and a capacity to wrap at."""
    lengths = np.array(draw(st.lists(st.integers(1, 60), max_size=20)), dtype=np.int32)
    weight = draw(st.sampled_from([1.0, 0.5, 2.0, 2.5]))
    samples = weighted_samples(np.zeros(len(lengths), dtype=np.int32), [weight], draw(st.integers(0, 9)), lengths)
    capacity = draw(st.integers(1, 50))
    overflow = draw(st.sampled_from(["split", "truncate", "drop"]))
    return lengths, samples, capacity, overflow, make_pieces(lengths, samples, capacity, overflow)


def triples(pieces):
    return list(zip(pieces.sample.tolist(), pieces.start.tolist(), pieces.length.tolist(), strict=True))


@given(case=cut_pieces(), seed=st.integers(0, 2**32))
def test_wrap_equals_its_twin(case, seed):
    lengths, samples, capacity, overflow, pieces = case
    wrapped = REGISTRY["wrap"].cut(pieces, capacity, seed)
    assert (wrapped.sample.dtype, wrapped.start.dtype, wrapped.length.dtype) == (np.int32,) * 3
    rows = [[triples(wrapped)[i] for i in pack] for pack in run("wrap", wrapped.length, capacity)]
    assert rows == naive.wrap(triples(pieces), capacity, int(rng_state(seed)[0]))
    if overflow == "split":
        check_pieces(wrapped, lengths, samples, is_whole=True)


@given(case=cut_pieces(), seed=st.integers(0, 2**32), num_gpus=st.sampled_from([1, 2, 8]))
def test_a_wrapped_plan_is_whole_and_full(case, seed, num_gpus):
    lengths, samples, capacity, overflow, pieces = case
    if not len(pieces):
        return
    plan = build_plan(pieces, request([Group(capacity=capacity)], num_gpus, seed=seed, packing="wrap"))
    check_plan(plan)
    kept = kept_samples(lengths, samples, capacity) if overflow == "drop" else samples
    check_pieces(plan.pieces, lengths, kept, is_whole=overflow != "truncate")
    assert plan.pieces.length.sum() == pieces.length.sum()
    if num_gpus == 1:  # more ranks share out the last packs
        assert len(plan.packs) == -(-pieces.length.sum() // capacity)


def test_wrap_refuses_more_groups():
    with pytest.raises(ValueError) as error:
        request([Group(capacity=10), Group(capacity=20)], 1, packing="wrap")
    assert str(error.value) == (
        "packing 'wrap' cuts samples, so it needs exactly one group; give one, or another packing"
    )
