"""Arrow schemas of what is written, names of files and folders, and the mark of Arrow files by which they tell the set
that they are of. See docs/formats.md."""

from __future__ import annotations

import json
from collections.abc import Container
from typing import NamedTuple

import pyarrow as pa

from packer_cli.format.arrays import list_of
from packer_cli.format.constants import ITEM_VALUES as ITEM_VALUES

TOKEN_COLUMNS = ("loss_starts", "loss_stops", "loss_weights", "input_ids")
"""Columns of a shard that repeat the token store."""


def _schema(**fields: pa.DataType) -> pa.Schema:
    return pa.schema([pa.field(name, kind, nullable=False) for name, kind in fields.items()])


KEPT = "record."
"""Begin of the names of columns of records that a part keeps behind its own."""


def own_columns(schema: pa.Schema) -> pa.Schema:
    """Return the columns of a part without those of its records."""
    return pa.schema([field for field in schema if not field.name.startswith(KEPT)])


def token_type(vocab_size: int | None) -> pa.DataType:
    """Choose the narrowest type that holds the token ids of a vocabulary; int32 where its size is not known.

    >>> token_type(65_536), token_type(65_537)
    (DataType(uint16), DataType(int32))
    """
    return pa.uint16() if vocab_size is not None and vocab_size <= 2**16 else pa.int32()


def _loss_columns(*, is_weighted: bool) -> dict[str, pa.DataType]:
    spans = {"loss_starts": list_of(pa.int32()), "loss_stops": list_of(pa.int32())}
    return {**spans, "loss_weights": list_of(pa.float32())} if is_weighted else spans


TREE_COLUMNS = {
    "segment_starts": list_of(pa.int32()),
    "segment_parents": list_of(pa.int32()),
    "branch_segments": list_of(pa.int32()),
    "branch_roles": list_of(pa.int16()),
    "branch_loss_spans": list_of(pa.int32()),
    "rewards": list_of(pa.float32()),
}
"""The columns of `format.trees`; of each branch its role, its number of loss spans, and its reward (NaN: it has
none)."""


class RowColumns(NamedTuple):
    """The columns that rows of parts and shards have besides those that all have."""

    is_weighted: bool = False
    """Whether loss tokens have weights."""
    of_items: bool = False
    """Whether rows have items, with the trees of their branches."""

    @property
    def unit(self) -> str:
        """The noun for a row of a part."""
        return "item" if self.of_items else "sample"

    def part(self, token: pa.DataType) -> pa.Schema:
        """Return the columns of a part of the token store, with ids of this `token_type`.

        With trees, a row is an item: its loss spans are those of its branches, one branch after another, as places in
        the branch.
        """
        of_items = {**TREE_COLUMNS, "item_kind": pa.int8(), **dict.fromkeys(ITEM_VALUES, pa.float32())}
        return _schema(
            input_ids=list_of(token),
            **_loss_columns(is_weighted=self.is_weighted),
            **(of_items if self.of_items else {}),
            num_loss_tokens=pa.int32(),
            content_hash=pa.uint64(),
            line=pa.int64(),
        )

    def shard(self, token: pa.DataType) -> pa.Schema:
        """Return the columns of a shard, with ids of this `token_type`.

        With trees, `cu_seqlens` has the borders of the roots' subtrees, samples are branches, and loss spans are
        places in the branch. `item_branches`, `item_kinds` and the lists of `ITEM_VALUES` have a value an item, or a
        part of one.
        """
        of_items = {
            **TREE_COLUMNS,
            "item_ids": list_of(pa.int64()),
            "item_branches": list_of(pa.int32()),
            "item_kinds": list_of(pa.int8()),
            **dict.fromkeys(ITEM_VALUES, list_of(pa.float32())),
            "num_path_tokens": pa.int64(),
        }
        return _schema(
            pack_id=pa.int64(),
            group=pa.int16(),
            sp_size=pa.int16(),
            checkpoint_layers=pa.int16(),
            num_tokens=pa.int32(),
            num_loss_tokens=pa.int32(),
            attention_work=pa.int64(),
            cost=pa.float64(),
            cp_sharding=pa.int8(),
            checksum=pa.uint64(),
            cu_seqlens=list_of(pa.int32()),
            sample_ids=list_of(pa.int64()),
            sample_starts=list_of(pa.int32()),
            source_ids=list_of(pa.int32()),
            **(of_items if self.of_items else {}),
            **_loss_columns(is_weighted=self.is_weighted),
            input_ids=list_of(token),  # Last: what readers of single rows need of a record batch precedes its tokens.
        )


def index_schema(token: pa.DataType) -> pa.Schema:
    """Return the columns of a shard of a set that was written with `--index-only`."""
    return pa.schema([field for field in RowColumns().shard(token) if field.name not in TOKEN_COLUMNS])


_ITERATION = _schema(
    step=pa.int64(),
    num_replicas=pa.int32(),
    global_num_packs=pa.int64(),
    global_num_samples=pa.int64(),
    global_num_tokens=pa.int64(),
    global_num_loss_tokens=pa.int64(),
)

OF_SOME_ITERATIONS = _schema(
    global_loss_weight=pa.float64(), step_seconds=pa.float32(), global_num_items=pa.int64(), most_items=pa.int32()
)
"""Further columns of iterations if the set has weights, if its steps are predicted, and if it has trees."""


def iteration_schema(names: Container[str]) -> pa.Schema:
    """Return the columns of iterations, with the ones of `OF_SOME_ITERATIONS` that are among these names."""
    return pa.schema([*_ITERATION, *(field for field in OF_SOME_ITERATIONS if field.name in names)])


RANK_SCHEMA = _schema(
    iteration=pa.int64(),
    pack=pa.int64(),
    group=pa.int16(),
    first_gpu=pa.int32(),
    dp_rank=pa.int32(),
    row_length=pa.int32(),
)


def shard_path(group: str, shard: int) -> str:
    """Make the path of a shard in the output folder, by its group's name."""
    return f"shards/{group}/shard-{shard:05d}.arrow"


def epoch_name(epoch: int) -> str:
    """Name the folder of an epoch's rank manifests."""
    return f"epoch-{epoch:03d}"


def generation_path(number: int) -> str:
    """Name the folder, in the output folder, of the schedules and rank manifests for another number of GPUs."""
    return f"ranks/rebalanced-{number:03d}"


def iterations_path(folder: str) -> str:
    """Make the path, in the output folder, of the columns that an epoch's ranks share, by the folder of the epoch."""
    return f"{folder}/iterations.arrow"


def ranks_path(folder: str, first: int, last: int) -> str:
    """Make the path of the manifest of ranks that read the same, in the output folder, by the folder of their
    epoch."""
    names = f"{first:05d}" if first == last else f"{first:05d}-{last:05d}"
    return f"{folder}/rank-{names}.arrow"


IDENTITY = b"hbpack"
"""Key of a file's identity in the metadata of its Arrow schema: the set's fingerprint and the path in it, as JSON."""


def identify(schema: pa.Schema, fingerprint: str, path: str) -> pa.Schema:
    """Add the identity of the file to the schema: the set that it is of, and its place there."""
    identity = json.dumps({"set": fingerprint, "path": path}).encode()
    return schema.with_metadata({**(schema.metadata or {}), IDENTITY: identity})


def find_foreign(schema: pa.Schema, fingerprint: str, path: str) -> str | None:
    """Name the owner of a file, in a few words, where it is another's; return None where it is just the one that
    belongs there."""
    try:
        identity = json.loads((schema.metadata or {})[IDENTITY])
        found, where = identity["set"], identity["path"]
    except (KeyError, TypeError, ValueError):
        return "it does not say which set it belongs to"
    if found != fingerprint:
        return f"it belongs to another set, {found}, not to {fingerprint}"
    return None if where == path else f"it is a copy of {where}"
