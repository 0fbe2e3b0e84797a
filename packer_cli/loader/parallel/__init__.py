"""Sequence parallelism (SP) at load time: the tokens of each rank, process groups, and reference attention.

::

    sharding.py    the tokens of a row that each rank holds; numpy only
    slices.py      splits tensors of a whole row into parts, and merges them
    groups.py      process groups of all degrees, created once
    attention.py   reference attention: packed, Ulysses, ring
"""

from packer_cli.loader.parallel.attention import packed_attention, ring_attention, ulysses_attention
from packer_cli.loader.parallel.groups import SPGroups, data_rank, init_sp_groups, plan_rank
from packer_cli.loader.parallel.sharding import SHARDINGS, Sharding, length_multiple, local_indices, row_order
from packer_cli.loader.parallel.slices import gather_slices, merge_slices, take_slice

__all__ = [
    "SHARDINGS",
    "SPGroups",
    "Sharding",
    "data_rank",
    "gather_slices",
    "init_sp_groups",
    "length_multiple",
    "local_indices",
    "merge_slices",
    "packed_attention",
    "plan_rank",
    "ring_attention",
    "row_order",
    "take_slice",
    "ulysses_attention",
]
