"""Random items whose samples share prefixes, for hypothesis, the micro-batches of their rows, and sets of pairs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from packer_cli.format.ranks import RankRow
from packer_cli.format.trees import PAIR
from packer_cli.loader.build_batch import NO_PACK, BatchBuilder, MicroBatch
from packer_cli.loader.formats import FORMATS
from tests import trees
from tests.loader.packed_set import PackedSet, group_of, write_set
from tests.naive.trees import Branch
from tests.tree_sets import put_trees
from tests.trees import Item

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
    builder = FORMATS[format].builder(**(arguments | options), groups=(group_of(4096, sp_size),))
    row = RankRow(0, 0, 0, 0, 0, place, 0, 1, 0, 1, 1, 1, 1)
    return builder.build(NO_PACK if pack is None else pack, row, 0)


def batch_of(pack: Any, format: str = "tree", **options: Any) -> Any:
    """As `build`, as a batch of the format."""
    return FORMATS[format].adapt(build(pack, format, **options))


PAIRS = [
    Item(PAIR, [trees.Branch([4, 5, 6, 7], [(2, 4)]), trees.Branch([4, 5, 6, 8, 9], [(2, 5)])], number)
    for number in range(3)
]


def write_pairs(path: Path, packs: list[list[Item]], *, num_gpus: int) -> PackedSet:
    """A set of these packs, one group and two epochs, the second of them with an iteration of fillers."""
    packed = write_set(path, [(64, 1, len(packs))], num_gpus=num_gpus, num_epochs=2)
    put_trees(path, packs)
    for pack, items in zip(packed.packs, packs, strict=True):
        pack.samples = items  # type: ignore[assignment]
    for epoch, iterations in enumerate(packed.epochs):
        counts = items_of_steps(packed, epoch)
        file = f"ranks/epoch-{epoch:03d}/iterations.arrow"
        table = pa.ipc.open_file((path / file).read_bytes()).read_all()
        columns = {
            "global_num_items": pa.array([counts[step] for step, _ in iterations], pa.int64()),
            "most_items": pa.array([max(map(len, packs))] * len(iterations), pa.int32()),
        }
        for name, values in columns.items():
            table = table.append_column(pa.field(name, values.type, nullable=False), values)
        packed.rewrite(file, table)
    return packed


def items_of_steps(packed: PackedSet, epoch: int) -> dict[int, int]:
    """Items of each step of an epoch."""
    found: dict[int, int] = {}
    for step, slots in packed.epochs[epoch]:
        found[step] = found.get(step, 0) + sum(len(pack.samples) for pack, _, _ in slots if pack is not None)
    return found
