"""Layouts: every GPU of a replica has one place, tensor parallelism innermost."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from packer_cli.format.layout import Layout

layouts = st.builds(Layout, *[st.integers(1, 4)] * 4)


@given(layouts)
def test_every_gpu_has_a_place_of_its_own(layout):
    places = [layout.place(gpu) for gpu in range(layout.num_gpus)]
    assert len(set(places)) == layout.num_gpus
    assert [layout.gpu(**place._asdict()) for place in places] == list(range(layout.num_gpus))
    assert places == sorted(places)  # Stages outermost, tensor parallelism innermost.


@given(layouts)
def test_the_ranks_that_share_a_row_are_numbered_without_gaps(layout):
    shares = {}
    for gpu in range(layout.num_gpus):
        place = layout.place(gpu)
        shares.setdefault((place.pp_rank, place.tp_rank), []).append(layout.row_rank(gpu))
    assert all(ranks == list(range(layout.row_ranks)) for ranks in shares.values())


def test_a_rank_must_be_below_its_degree():
    with pytest.raises(ValueError, match=r"^tp_rank is 2, and the degree is 2$"):
        Layout(tp=2).gpu(tp_rank=2)
