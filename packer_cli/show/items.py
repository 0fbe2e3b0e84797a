"""The items of a pack of a set with trees: their branches, and the segments that these share."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from packer_cli.format.loss_spans import STARTS, STOPS, count_by_row
from packer_cli.format.ragged import offsets_of
from packer_cli.format.records import Hidden
from packer_cli.format.schema import ITEM_VALUES
from packer_cli.format.shards import Row
from packer_cli.format.tree_rows import loss_by_token, trees_of
from packer_cli.format.trees import GROUP, KINDS, PAIR, PAIR_ROLES, TURNS
from packer_cli.show.decode import CONTEXT, Decode, Run, runs_of
from packer_cli.show.samples import Origin, source_name

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
class ItemRecord:
    """An item of a pack, or a part of one."""

    unit: ClassVar[str] = "item"
    """The noun for it."""

    index: int
    """Its place in the pack."""
    item_id: int
    kind: str
    """`sample`, `pair`, `group` or `turns`."""
    source: str
    """Name of the input."""
    file: str | None
    line: int | None
    """The record that it comes from; None where the set does not keep its token store."""
    begin: int
    """Its first token in the pack."""
    start: int
    """First token, in the whole sample, of a sample that was cut."""
    num_tokens: int
    flat_tokens: int
    """Tokens of the item's branches, one by one."""
    num_loss_tokens: int
    values: Mapping[str, float]
    """Further values that the item brings, such as `margin`."""
    branches: tuple[BranchRecord, ...]
    segments: tuple[SegmentRecord, ...]
    """In depth-first order."""

    @property
    def number(self) -> int:
        """The id by which users find it."""
        return self.item_id

    @property
    def loss_weight(self) -> float:
        """The sum of its tokens' weights."""
        return sum(float(segment.loss_mask.sum(dtype=np.float64)) for segment in self.segments)

    def with_runs(self, decode: Decode | None) -> ItemRecord:
        """Return the item with the runs of its segments; None leaves the texts out."""
        of_each = [runs_of(decode, each.input_ids, each.loss_mask, each.before) for each in self.segments]
        segments = (replace(each, runs=runs) for each, runs in zip(self.segments, of_each, strict=True))
        return replace(self, segments=tuple(segments))


def read_items(row: Row, names: Sequence[str], origins: Sequence[Origin]) -> tuple[ItemRecord, ...]:
    """Read the items of a row of a shard, as `ShardFile.columns` gives it, that keeps all rules of `tree_rows`. O(K).

    Args:
        names: of the inputs.
        origins: of each branch.
    """
    reader, borders = _Reader(row), itertools.pairwise([0, *np.cumsum(row["item_branches"]).tolist()])
    found = []
    for index, (begin, end) in enumerate(borders):
        source, (file, line) = int(row["source_ids"][begin]), origins[begin]
        found.append(reader.item(index, range(begin, end), source_name(names, source), file, line))
    return tuple(found)


class _Reader:
    """The items, branches and segments in a row; `own` is the segments of an item."""

    def __init__(self, row: Row) -> None:
        self._row, self._trees, self._loss = row, trees_of(row), loss_by_token(row)
        self._paths = self._trees.paths(np.arange(len(self._trees.segment_parents)))
        self._depths = self._trees.depths()
        self._lengths = self._trees.branch_lengths()
        self._num_loss_tokens = count_by_row(row[STARTS], row[STOPS], offsets_of(row["branch_loss_spans"]))

    def item(self, index: int, branches: range, source: str, file: str | None, line: int | None) -> ItemRecord:
        row, numbers, own = self._row, slice(branches.start, branches.stop), self._segments_of(branches)
        begin, end = (int(self._trees.segment_starts[s]) for s in (own.start, own.stop))
        kind = int(row["item_kinds"][index])
        sharing: list[list[int]] = [[] for _ in own]
        for number, branch in enumerate(branches):
            segment = int(self._trees.branch_segments[branch])
            while segment >= 0:
                sharing[segment - own.start].append(number)
                segment = int(self._trees.segment_parents[segment])
        return ItemRecord(
            index=index,
            item_id=int(row["item_ids"][branches.start]),
            kind=KINDS[kind],
            source=source,
            file=file,
            line=line,
            begin=begin,
            start=int(row["sample_starts"][branches.start]),
            num_tokens=end - begin,
            flat_tokens=int(self._lengths[numbers].sum()),
            num_loss_tokens=int(self._num_loss_tokens[numbers].sum()),
            values={name: float(row[name][index]) for name in ITEM_VALUES if not np.isnan(row[name][index])},
            branches=tuple(self._branch(branch, kind, own) for branch in branches),
            segments=tuple(self._segment(s, own, tuple(shared)) for s, shared in zip(own, sharing, strict=True)),
        )

    def _segments_of(self, branches: range) -> range:
        """Find the segments of an item with these branches: its trees follow one another."""
        ends = self._trees.branch_segments[branches.start : branches.stop]
        roots = np.flatnonzero(self._trees.segment_parents < 0)
        borders = np.append(roots, len(self._trees.segment_parents))
        first, last = np.searchsorted(roots, [ends.min(), ends.max()], side="right")
        return range(int(borders[first - 1]), int(borders[last]))

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
            loss_mask=self._loss[begin:end],
        )
