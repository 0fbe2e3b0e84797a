"""Sequence parallelism (SP) at load time: the tokens of each rank, process groups, and reference attention.

::

    groups.py      process groups of all degrees, created once
    attention.py   splits and merges tensors of a row; reference attention: packed, Ulysses, all-gather
"""

from packer_cli.format.layout import Layout
from packer_cli.format.sharding import SHARDINGS, Sharding, length_multiple, local_indices, row_order
from packer_cli.loader.parallel.attention import (
    gather_slices,
    gathered_attention,
    merge_slices,
    packed_attention,
    sum_slices,
    take_slice,
    ulysses_attention,
)
from packer_cli.loader.parallel.groups import SPGroups, data_rank, end_process_group, init_sp_groups, plan_rank

__all__ = [
    "SHARDINGS",
    "Layout",
    "SPGroups",
    "Sharding",
    "data_rank",
    "end_process_group",
    "gather_slices",
    "gathered_attention",
    "init_sp_groups",
    "length_multiple",
    "local_indices",
    "merge_slices",
    "packed_attention",
    "plan_rank",
    "row_order",
    "sum_slices",
    "take_slice",
    "ulysses_attention",
]
