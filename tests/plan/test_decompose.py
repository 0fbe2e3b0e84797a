"""Dataset decomposition: pieces of powers of two, rows of one length, and a curriculum of short rows first."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packer_cli.plan.build import build_plan
from packer_cli.plan.core.check import check_pieces, check_plan
from packer_cli.plan.core.groups import Group
from packer_cli.plan.core.schedule import StepRules
from packer_cli.plan.core.types import FILLER, Pieces
from packer_cli.plan.kernels.balance import parse_balance
from packer_cli.plan.packing import REGISTRY
from packer_cli.plan.packing.wrap_decompose import SHORTEST
from tests.naive.packing import decompose
from tests.plan.packing import run
from tests.plan.test_build import whole
from tests.requests import request

ALGORITHM = REGISTRY["decompose"]


@given(
    lengths=st.lists(st.integers(1, 3000), max_size=20),
    capacity=st.sampled_from([1, 32, 64, 128, 1024]),
    seed=st.integers(0, 99),
)
def test_pieces_and_rows_are_those_of_the_twin(lengths, capacity, seed):
    pieces = ALGORITHM.cut(whole(lengths), capacity, seed)
    expected = [(i, start, size) for i, n in enumerate(lengths) for start, size in decompose(n, capacity)]
    found = zip(pieces.sample.tolist(), pieces.start.tolist(), pieces.length.tolist(), strict=True)
    assert list(found) == expected
    check_pieces(pieces, np.array(lengths, dtype=np.int32), np.arange(len(lengths)), is_whole=True)
    rows = [
        sorted((int(pieces.length[i]) for i in pack), reverse=True)
        for pack in run("decompose", pieces.length, capacity, seed)
    ]
    of_one_length = [row for row in rows if len(set(row)) == 1 and sum(row) == capacity]
    shortest = min(SHORTEST, capacity)
    for size in {int(n) for n in pieces.length if n >= shortest and n & (n - 1) == 0}:
        count, per_row = int((pieces.length == size).sum()), capacity // size
        assert sum(row[0] == size for row in of_one_length) >= count // per_row
    assert sorted(n for row in rows for n in row) == sorted(pieces.length.tolist())


def test_pieces_that_were_cut_before_are_joined():
    samples, start, length = np.array([[7, 7, 9], [0, 600, 0], [600, 424, 64]], dtype=np.int32)
    pieces = Pieces(samples=samples, start=start, length=length)
    cut = ALGORITHM.cut(pieces, 1024, 0)
    assert (cut.sample.tolist(), cut.start.tolist(), cut.length.tolist()) == ([7, 9], [0, 0], [1024, 64])


@given(lengths=st.lists(st.integers(1, 3000), min_size=1, max_size=20), align=st.sampled_from([2, 64, 128, 512]))
def test_no_piece_is_cut_below_the_alignment(lengths, align):
    """It would be padded to as many tokens as a whole rest."""
    pieces = ALGORITHM.cut(whole(lengths), 1024, 0, align)
    shortest = max(align, SHORTEST)
    expected = [(i, start, size) for i, n in enumerate(lengths) for start, size in decompose(n, 1024, shortest)]
    assert [*zip(pieces.sample.tolist(), pieces.start.tolist(), pieces.length.tolist(), strict=True)] == expected
    padded = -(-pieces.length // align) * align
    assert padded.sum() == sum(-(-length // align) * align for length in lengths)
    check_plan(build_plan(whole(lengths), request([Group(capacity=1024, align=align)], 2, "decompose")))


def test_the_curriculum_takes_short_pieces_first():
    lengths = np.random.default_rng(0).integers(64, 4096, 300)
    steps = StepRules(curriculum_steps=20)
    one = request([Group(capacity=4096)], 2, "decompose", steps=steps, balance=parse_balance("sort"))
    plan = build_plan(whole(lengths), one)
    check_plan(plan)
    schedule = plan.epochs[0]
    longest = np.maximum.reduceat(plan.pieces.length[plan.packs.pieces], plan.packs.offsets[:-1])
    first = schedule.slot_pack[schedule.slot_iteration < 20]
    later = schedule.slot_pack[schedule.slot_iteration >= 20]
    shares = [(longest[packs[packs != FILLER]] == 2048).mean() for packs in (first, later)]
    assert shares[0] < 0.4 < 0.6 < shares[1]


def test_the_capacity_must_be_a_power_of_two():
    with pytest.raises(ValueError) as error:
        request([Group(capacity=1000)], 1, "decompose")
    assert str(error.value) == (
        "packing 'decompose' cuts samples into powers of two, so the capacity must be one, got 1000; give 512 or "
        "1024, or another packing"
    )
    with pytest.raises(ValueError, match="; give 1073741824, or another packing"):  # 2^31 tokens are too many.
        request([Group(capacity=2**30 + 1)], 1, "decompose")
