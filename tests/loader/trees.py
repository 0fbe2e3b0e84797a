"""Random items whose samples share prefixes, for hypothesis, and the micro-batches of their rows."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from packer_cli.format.ranks import RankRow
from packer_cli.loader.batch import BatchBuilder, MicroBatch
from packer_cli.loader.formats import FORMATS, get_format
from tests.loader.packed_set import group_of
from tests.naive.trees import Branch

PAD = 999
FLAT_FORMATS = sorted(name for name, each in FORMATS.items() if each.builder is BatchBuilder)
"""Those of sets without trees."""


@st.composite
def branches(draw: Any, weights: tuple[float, ...] = (0, 1)) -> Branch:
    # Of few ids, so that there are common prefixes, branches that are a prefix of another, and equal ones.
    tokens = draw(st.lists(st.integers(0, 2), min_size=1, max_size=9))
    return Branch(tokens, [0, *(draw(st.sampled_from(weights)) for _ in tokens[1:])])


def items(weights: tuple[float, ...] = (0, 1)) -> st.SearchStrategy[list[list[Branch]]]:
    return st.lists(st.lists(branches(weights), min_size=1, max_size=5), min_size=1, max_size=3)


def build(pack: Any, format: str = "tree", *, sp_size: int = 1, place: int = 0, **options: Any) -> MicroBatch:
    """The micro-batch of a pack, None for a filler, on the GPU `place` of those that share it."""
    arguments = {"pad_to": "multiple", "pad_to_multiple_of": 1, "pad_token_id": PAD, "sp_slice": True}
    builder = get_format(format).builder(**(arguments | options), groups=(group_of(4096, sp_size),))
    row = RankRow(0, 0, 0, 0, 0, place, 0, 1, 0, 0, 1, 1, 1, 1)
    return builder.filler(row, 0) if pack is None else builder.build(pack, row, 0)


def batch_of(pack: Any, format: str = "tree", **options: Any) -> Any:
    """As `build`, as a batch of the format."""
    return get_format(format).adapt(build(pack, format, **options))
