"""The choice of a context-parallel sharding: its prediction, piece by piece, and what it promises."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packer_cli.format.sharding import PLANNED, local_indices
from packer_cli.plan.core.attention_rates import AttentionRates, ShardingRule, parse_cp_sharding
from packer_cli.plan.core.cp_sharding import choose_sharding, cp_imbalance, cp_slowdown, predict_seconds
from packer_cli.plan.core.groups import Group
from packer_cli.plan.core.types import Packs, Pieces, Plan
from tests.naive import sharding as naive_sharding

TABLE = AttentionRates.measured(
    [(16, 512, 3.0), (128, 512, 4.0), (512, 512, 9.0), (16, 4096, 17.0), (128, 4096, 19.0), (1024, 4096, 60.0)]
)


def as_arrays(packs: Sequence[Sequence[int]]) -> tuple[np.ndarray, np.ndarray]:
    """Lengths and offsets."""
    lengths = np.array([length for pack in packs for length in pack], dtype=np.int32)
    return lengths, np.cumsum([0, *map(len, packs)])


def as_plan(packs: Sequence[Sequence[int]], cp_sizes: Sequence[int], codes: Sequence[int] = ()) -> Plan:
    """The packs, unscheduled; one group for each CP degree."""
    lengths, offsets = as_arrays(packs)
    groups = tuple(Group(capacity=2**20 + size, cp_size=size) for size in sorted(set(cp_sizes)))
    return Plan(
        groups=groups,
        num_gpus=1,
        pieces=Pieces(samples=None, start=np.zeros(len(lengths), dtype=np.int32), length=lengths),
        packs=Packs(
            offsets=offsets,
            pieces=np.arange(len(lengths), dtype=np.int32),
            group=np.array([sorted(set(cp_sizes)).index(size) for size in cp_sizes], dtype=np.int16),
            cp_sharding=np.array(codes or [0] * len(packs), dtype=np.int8),
        ),
        epochs=(),
    )


def chosen(packs: Sequence[Sequence[int]], cp_sizes: Sequence[int], rule: ShardingRule) -> list[int]:
    return choose_sharding(as_plan(packs, cp_sizes), rule).packs.cp_sharding.tolist()


def table_rate(q: int, kv: int) -> float:
    """`TABLE`, by numpy: first along the queries, then along the keys."""
    return float(np.interp(kv, TABLE.keys, [np.interp(q, TABLE.queries, row) for row in TABLE.rates]))


packs = st.lists(
    st.one_of(
        st.lists(st.integers(1, 3000), min_size=1, max_size=8), st.lists(st.integers(1, 40), min_size=1, max_size=30)
    ),
    min_size=1,
    max_size=4,
)


@settings(max_examples=150, deadline=None)
@given(packs=packs, cp_size=st.sampled_from([2, 3, 4, 8, 16]), rho=st.sampled_from([0.5, 1.0, None]))
def test_predicted_times_are_those_of_the_pieces(packs: list[list[int]], cp_size: int, rho: float | None) -> None:
    def rate(q: int, kv: int) -> float:
        return table_rate(q, kv) if rho is None else rho if q < 256 else 1.0

    rates = TABLE if rho is None else AttentionRates.assumed(rho)
    lengths, offsets = as_arrays(packs)
    cp_sizes = np.full(len(packs), cp_size)
    seconds = predict_seconds(lengths, offsets, cp_sizes, rates)
    wanted = [[naive_sharding.seconds(pack, cp_size, sharding, rate) for sharding in PLANNED] for pack in packs]
    np.testing.assert_allclose(seconds, wanted, rtol=1e-12)
    codes = chosen(packs, cp_sizes.tolist(), ShardingRule(rates=rates))
    assert seconds[np.arange(len(packs)), codes].tolist() == seconds.min(axis=1).tolist()
    assert codes == (seconds[:, 1] < seconds[:, 0]).tolist()  # Ties per sequence.


@settings(max_examples=100, deadline=None)
@given(packs=packs, cp_size=st.sampled_from([2, 4, 8]), code=st.integers(0, 1))
def test_work_is_that_of_the_parts_the_loader_takes(packs: list[list[int]], cp_size: int, code: int) -> None:
    packs = [[*pack, 2 * cp_size - sum(pack) % (2 * cp_size)] for pack in packs]
    found = cp_imbalance(as_plan(packs, [cp_size] * len(packs), [code] * len(packs)))
    for pack, imbalance in zip(packs, found, strict=True):
        keys = np.concatenate([np.arange(1, length + 1) for length in pack])
        borders = np.cumsum([0, *pack])
        work = [keys[local_indices(borders, cp_size, rank, PLANNED[code])].sum() for rank in range(cp_size)]
        assert imbalance == pytest.approx(max(work) / np.mean(work), rel=1e-12)
    slower = cp_slowdown(as_plan(packs, [cp_size] * len(packs), [code] * len(packs)))
    wanted = [naive_sharding.slowdown(pack, cp_size, PLANNED[code]) for pack in packs]
    np.testing.assert_allclose(slower, wanted, rtol=1e-12)


def test_long_samples_go_per_document_and_short_ones_per_sequence() -> None:
    packs = [[40_000, 20_000, 5000, 536], [65_536], [256] * 256, [65_536]]
    cp_sizes = [4, 4, 4, 1]
    assert chosen(packs, cp_sizes, ShardingRule()) == [1, 0, 0, 0]
    assert chosen(packs, cp_sizes, ShardingRule(choice="document")) == [1, 1, 1, 0]
    assert chosen(packs, cp_sizes, ShardingRule(choice="sequence")) == [0, 0, 0, 0]
    static = chosen(packs, cp_sizes, ShardingRule(choice="static"))
    of_all = predict_seconds(
        np.array([length for pack in packs for length in pack], dtype=np.int32),
        np.cumsum([0, *map(len, packs)]),
        np.array(cp_sizes),
        AttentionRates.assumed(),
    ).sum(axis=0)
    assert static == [int(of_all[1] < of_all[0])] * 3 + [0]
    assert predict_seconds(*as_arrays(packs), np.array(cp_sizes), TABLE)[3].tolist() == [0, 0]
    assert cp_imbalance(as_plan(packs, cp_sizes))[3] == 1


def test_with_a_causal_mask_the_row_is_one_sample() -> None:
    plan = replace(as_plan([[40_000, 20_000, 5000, 536]], [4]), mask="causal")
    assert choose_sharding(plan, ShardingRule()).packs.cp_sharding.tolist() == [0]
    assert cp_imbalance(plan).tolist() == [1.0]


def test_a_slow_rate_for_short_pieces_turns_the_choice() -> None:
    packs = [[1500] * 40 + [5536]]
    rules = [ShardingRule(rates=AttentionRates.assumed(rho)) for rho in (1.0, 0.2)]
    assert [chosen(packs, [4], rule) for rule in rules] == [[1], [0]]


def test_rates_hold_beyond_the_table() -> None:
    for q, kv in ((1, 1), (16, 100), (4096, 10**6), (2, 10**6)):
        lengths, offsets = as_arrays([[kv]])
        assert table_rate(q, kv) == table_rate(min(max(q, 16), 1024), min(max(kv, 512), 4096))
        assert np.isfinite(predict_seconds(lengths, offsets, np.array([2]), TABLE)).all()


KNOWN = "known: sequence, document, static, auto, and auto:rho=R such as auto:rho=0.7"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("zigzag", f"unknown sharding 'zigzag'; {KNOWN}"),
        ("document:rho=1", f"unknown sharding 'document:rho=1'; {KNOWN}"),
        ("auto:rho", f"unknown sharding 'auto:rho'; {KNOWN}"),
        ("auto:rho=0", "rho must be a number above 0 and at most 1, got '0'"),
        ("auto:rho=nan", "rho must be a number above 0 and at most 1, got 'nan'"),
        ("auto:rho=x", "rho must be a number above 0 and at most 1, got 'x'"),
    ],
)  # fmt: skip
def test_errors(text: str, message: str) -> None:
    with pytest.raises(ValueError) as error:
        parse_cp_sharding(text)
    assert str(error.value) == message
