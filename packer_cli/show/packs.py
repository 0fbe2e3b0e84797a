"""A pack as it lies in its shard: its samples, or its items with their branches and the segments that these share."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer_cli.errors import ConfigError, HbpackError
from packer_cli.format.arrays import Row
from packer_cli.format.constants import PLAN_NAME
from packer_cli.format.items import find_wrong_items, loss_by_token, trees_of
from packer_cli.format.layout import Layout
from packer_cli.format.loss_spans import STARTS, STOPS, WEIGHTS, count_by_row, find_wrong_row, spans_to_weights
from packer_cli.format.manifest import Manifest, SetFolder
from packer_cli.format.ragged import offsets_of
from packer_cli.format.ranks import locate_packs
from packer_cli.format.records import Hidden
from packer_cli.format.schema import ITEM_VALUES, KEPT
from packer_cli.format.sharding import PLANNED, Sharding
from packer_cli.format.shards import ShardFile
from packer_cli.format.token_parts import TokenParts
from packer_cli.format.trees import GROUP, KINDS, PAIR, PAIR_ROLES, TURNS
from packer_cli.shards.own_store import own_index, store_of
from packer_cli.shards.plan_file import read_plan_header
from packer_cli.show.decode import CONTEXT, Run
from packer_cli.tokens.index import read_columns

Origin = tuple[str | None, int | None, dict[str, str | None] | None]
"""The file and line of a sample, and the columns that are kept of its record; None where the set keeps none."""
_ROLES = {GROUP: "completion", TURNS: "turn"}


@dataclass(frozen=True, kw_only=True)
class BranchRecord:
    """A sample of an item."""

    role: str
    """`chosen` or `rejected`; `completion` or `turn` with a number, from 1; `sample`."""
    sample_id: int
    num_tokens: int
    num_loss_tokens: int
    reward: float | None = None
    segment: int
    """In which it ends."""


@dataclass(frozen=True, kw_only=True)
class SegmentRecord:
    """Tokens of an item that the same branches share."""

    parent: int | None
    """The segment that it continues; None: it begins its branches."""
    begin: int
    """Its first token in the pack."""
    depth: int
    """Tokens before it in its branches."""
    num_tokens: int
    branches: tuple[int, ...]
    """Numbers of the branches that share it."""
    runs: tuple[Run, ...] = ()
    input_ids: Hidden[NDArray[Any]]
    """uint16 or int32 [t]"""
    before: Hidden[NDArray[Any]]
    """The last tokens before it in its branches, which may begin a character that it ends."""
    loss_mask: Hidden[NDArray[np.float32]]
    """float32[t]: the weight of each token's loss, summed over the branches that train it"""


@dataclass(frozen=True, kw_only=True)
class PartRecord:
    """A sample of a pack, or an item of one in a set with trees; or a piece of it."""

    index: int
    """Its place in the pack."""
    sample_id: int | None = None
    """The id of a sample."""
    item_id: int | None = None
    """The id of an item, which has the other values that a sample lacks: all that are null by default but `runs`."""
    kind: str | None = None
    """`sample`, `pair`, `group` or `turns`."""
    source: str
    """Name of the input."""
    file: str | None
    line: int | None
    """The record that it comes from; None where the set does not keep its token store."""
    kept: dict[str, str | None] | None = None
    """The record's `--keep-columns`, as text; None where the set keeps none."""
    begin: int
    """Its first token in the pack."""
    start: int
    """Its first token in the whole sample, which may be cut."""
    num_tokens: int
    flat_tokens: int | None = None
    """Tokens of the item's branches, one by one."""
    num_loss_tokens: int
    values: Mapping[str, float] | None = None
    """Further values that the item brings, such as `margin`."""
    branches: tuple[BranchRecord, ...] | None = None
    segments: tuple[SegmentRecord, ...] | None = None
    """In depth-first order."""
    runs: tuple[Run, ...] | None = None
    """The tokens of a sample; those of an item are in its segments."""
    input_ids: Hidden[NDArray[Any]]
    """uint16 or int32 [t]"""
    loss_mask: Hidden[NDArray[np.int8] | NDArray[np.float32]]
    """int8[t], or float32[t] in a set with weights: that of each token's loss, 0 for none; of an item, as in its
    segments"""


@dataclass(frozen=True, kw_only=True)
class PackRecord:
    """A pack."""

    pack_id: int
    group: str
    capacity: int
    num_tokens: int
    num_loss_tokens: int
    loss_weight: float | None = None
    """The sum of its tokens' weights, in a set that has any."""
    attention_work: int
    cp_sharding: Sharding | None
    """Sharding by which CP ranks divide the row; None without CP ranks."""
    num_samples: int
    """With trees, branches."""
    num_items: int | None = None
    """Number of items; only in a set with trees."""
    flat_tokens: int | None = None
    """Tokens of the pack's branches, one by one; only in a set with trees."""
    num_path_tokens: int | None = None
    """K: tokens of the paths of all leaves, which varlen kernels gather in every layer; only in a set with trees."""
    rank_tokens: tuple[int, int] | None
    """Begin and end of the part of its row that the rank takes."""
    layout: Hidden[Layout]
    """Layout of the group."""
    parts: Hidden[tuple[PartRecord, ...]]
    """Its items, in a set with trees; samples otherwise."""


def require_between(option: str, value: int, first: int, last: int, why: str) -> None:
    """Raise ConfigError for a value that an option of this set does not take, and say why."""
    if not first <= value <= last:
        raise ConfigError(f"{option} must be from {first} to {last}, got {value}: {why}")


def read_pack(files: SetFolder, manifest: Manifest, pack: int) -> PackRecord:
    """Read a pack as it lies in its shard. Price: one record batch; of a remote shard, some 16 packs travel.

    Raises:
        ConfigError: there is none of that id.
        FormatError: the shard is missing or damaged.
    """
    num_packs = sum(group.num_packs for group in manifest.groups)
    require_between("--pack", pack, 0, num_packs - 1, f"the set has {num_packs:,} packs")
    number, shard, row = (int(each[0]) for each in locate_packs(manifest, np.array([pack])))
    group = manifest.groups[number]
    path = group.shards[shard].path
    # Of a remote set whose shards leave their tokens in the token store, whole parts travel.
    tokens = TokenParts(lambda part: files.read(part.path), manifest.tokens, is_weighted=manifest.is_weighted)
    with files.reading(path), files.source(path) as source:
        file = ShardFile(source, manifest.schema, tokens if manifest.tokens else None)
        found = file.read(row)
        if found is None or found.pack_id != pack:
            raise ValueError(f"pack {pack} is not where it should be")
        file.check(row, found)
        others = file.columns(row)
        is_flat = manifest.unit == "sample"
        why = find_wrong_samples(others) if is_flat else find_wrong_items(others)
        if why is not None:
            raise ValueError(why)
    origins = sample_origins(files, others["sample_ids" if is_flat else "item_ids"])
    names = [given.name for given in manifest.sources]
    parts = read_parts(others, names, origins)
    loss_weight = sum(float(part.loss_mask.sum(dtype=np.float64)) for part in parts)
    return PackRecord(
        pack_id=pack,
        group=group.name,
        capacity=group.capacity,
        num_tokens=len(found.input_ids),
        num_loss_tokens=found.num_loss_tokens,
        attention_work=others["attention_work"],
        loss_weight=loss_weight if manifest.is_weighted else None,
        cp_sharding=PLANNED[found.cp_sharding] if group.layout.cp > 1 else None,
        num_samples=len(found.sample_ids),
        num_items=None if is_flat else len(parts),
        flat_tokens=None if is_flat else sum(part.flat_tokens or 0 for part in parts),
        num_path_tokens=others.get("num_path_tokens"),
        rank_tokens=None,
        layout=group.layout,
        parts=parts,
    )


def sample_origins(files: SetFolder, samples: NDArray[np.int64]) -> list[Origin]:
    """Find the origin of each sample, by the token store; unknown where the store is gone, or is another one by now.

    Price: the line column of the parts that hold them, 8 bytes a sample, and their kept columns.
    """
    try:
        header = read_plan_header(files.root / PLAN_NAME)
        index, store = own_index(files.root, header), store_of(files.root, header)
        first = np.cumsum([0, *(part.num_samples for part in index.parts)])
        numbers = np.searchsorted(first, samples, side="right") - 1
        names = index.options.kept
        columns = ["line", *(KEPT + name for name in names)]
        tables = {number: read_columns(store / index.parts[number].path, columns) for number in set(numbers)}
        paths = [file.path for part in index.parts for file in part.files]
        ends = np.cumsum([file.num_samples for part in index.parts for file in part.files])
        origins: list[Origin] = []
        for number, file, sample in zip(numbers, np.searchsorted(ends, samples, side="right"), samples, strict=True):
            (record,) = tables[number].slice(sample - first[number], 1).to_pylist()
            origins.append((paths[file], record["line"], {name: record[KEPT + name] for name in names} or None))
        return origins
    except (HbpackError, OSError, ValueError, TypeError, KeyError, IndexError):
        return [(None, None, None)] * len(samples)


def find_wrong_samples(row: Row) -> str | None:
    """Say what is wrong with the borders and loss spans of a row of flat samples; None if they keep every rule."""
    starts, stops, weights, borders = row[STARTS], row[STOPS], row.get(WEIGHTS), row["cu_seqlens"]
    if len(borders) < 2 or borders[-1] != len(row["input_ids"]) or len(borders) != len(row["sample_ids"]) + 1:
        return "the borders of its samples do not agree with its tokens"
    is_even = len(starts) == len(stops) and (weights is None or len(weights) == len(starts))
    whole = np.array([0, len(starts)]), borders[[0, -1]]
    if not is_even or find_wrong_row(starts, stops, *whole, borders, weights) is not None:
        return "its loss spans are wrong"
    return None


def source_name(names: Sequence[str], source: int) -> str:
    """Find the name of an input, if it has one."""
    return names[source] if 0 <= source < len(names) else f"source {source}"


def read_parts(row: Row, names: Sequence[str], origins: Sequence[Origin]) -> tuple[PartRecord, ...]:
    """Read the samples or items of a row of a shard, as `ShardFile.columns` gives it, that keeps all rules. O(K).

    Args:
        names: of the inputs.
        origins: of each sample or branch.
    """
    ids, items = row["input_ids"], _Items(row) if "item_branches" in row else None
    if items is None:
        loss = spans_to_weights(row[STARTS], row[STOPS], row.get(WEIGHTS), len(ids))
        firsts, borders = np.arange(len(row["sample_ids"])), row["cu_seqlens"]
    else:
        loss, firsts, borders = items.loss, items.branches[:-1], items.borders
    found = []
    for index, (begin, end) in enumerate(itertools.pairwise(borders.tolist())):
        first, mask = int(firsts[index]), loss[begin:end]
        flat = {"sample_id": int(row["sample_ids"][first]), "num_loss_tokens": int(np.count_nonzero(mask))}
        own: dict[str, Any] = flat if items is None else items.values(index)
        found.append(
            PartRecord(
                index=index,
                source=source_name(names, int(row["source_ids"][first])),
                file=origins[first][0],
                line=origins[first][1],
                kept=origins[first][2],
                begin=begin,
                start=int(row["sample_starts"][first]),
                num_tokens=end - begin,
                input_ids=ids[begin:end],
                loss_mask=mask,
                **own,
            )
        )
    return tuple(found)


class _Items:
    """The items, branches and segments in a row; `own` is the segments of an item."""

    def __init__(self, row: Row) -> None:
        self._row, self._trees, self.loss = row, trees_of(row), loss_by_token(row)
        self.branches = offsets_of(row["item_branches"])
        # In depth-first order, the last segment of an item is the last one in which a branch ends.
        self._segments = np.append(0, np.maximum.reduceat(row["branch_segments"], self.branches[:-1]) + 1)
        self.borders = self._trees.segment_starts[self._segments]
        self._paths = self._trees.paths(np.arange(len(self._trees.segment_parents)))
        self._depths = self._trees.depths()
        self._lengths = self._trees.branch_lengths()
        self._num_loss_tokens = count_by_row(row[STARTS], row[STOPS], offsets_of(row["branch_loss_spans"]))

    def values(self, index: int) -> dict[str, Any]:
        """Read what only an item has."""
        row, numbers = self._row, slice(*self.branches[index : index + 2].tolist())
        branches, own = range(numbers.start, numbers.stop), range(*self._segments[index : index + 2].tolist())
        kind = int(row["item_kinds"][index])
        sharing: list[list[int]] = [[] for _ in own]
        for number, branch in enumerate(branches):
            segment = int(self._trees.branch_segments[branch])
            while segment >= 0:
                sharing[segment - own.start].append(number)
                segment = int(self._trees.segment_parents[segment])
        return {
            "item_id": int(row["item_ids"][branches.start]),
            "kind": KINDS[kind],
            "flat_tokens": int(self._lengths[numbers].sum()),
            "num_loss_tokens": int(self._num_loss_tokens[numbers].sum()),
            "values": {name: float(row[name][index]) for name in ITEM_VALUES if not np.isnan(row[name][index])},
            "branches": tuple(self._branch(branch, kind, own) for branch in branches),
            "segments": tuple(self._segment(s, own, tuple(shared)) for s, shared in zip(own, sharing, strict=True)),
        }

    def _branch(self, branch: int, kind: int, own: range) -> BranchRecord:
        role, reward = int(self._row["branch_roles"][branch]), float(self._row["rewards"][branch])
        names = PAIR_ROLES if kind == PAIR else ("sample",)
        return BranchRecord(
            role=f"{_ROLES[kind]} {role + 1}" if kind in _ROLES else names[role],
            sample_id=int(self._row["sample_ids"][branch]),
            num_tokens=int(self._lengths[branch]),
            num_loss_tokens=int(self._num_loss_tokens[branch]),
            reward=None if np.isnan(reward) else reward,
            segment=int(self._trees.branch_segments[branch]) - own.start,
        )

    def _segment(self, segment: int, own: range, branches: tuple[int, ...]) -> SegmentRecord:
        begin, end = self._trees.segment_starts[segment : segment + 2].tolist()
        parent, depth = int(self._trees.segment_parents[segment]), int(self._depths[segment])
        path = self._paths.values[self._paths.offsets[segment] : self._paths.offsets[segment + 1]]
        ids = self._row["input_ids"]
        return SegmentRecord(
            parent=parent - own.start if parent >= 0 else None,
            begin=begin,
            depth=depth,
            num_tokens=end - begin,
            branches=branches,
            input_ids=ids[begin:end],
            before=ids[path[max(0, depth - CONTEXT) : depth]],
            loss_mask=self.loss[begin:end],
        )
