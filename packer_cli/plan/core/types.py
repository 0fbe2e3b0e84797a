"""The plan as data, in compressed (CSR) arrays, since there may be a billion samples."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from packer_cli.format.constants import Lockstep, Mask
from packer_cli.format.layout import Layout
from packer_cli.format.ragged import begins_run
from packer_cli.plan.core.groups import UNLIMITED, Group

Int8Array = NDArray[np.int8]
Int16Array = NDArray[np.int16]
Int32Array = NDArray[np.int32]
Int64Array = NDArray[np.int64]
UInt64Array = NDArray[np.uint64]
Float64Array = NDArray[np.float64]
BoolArray = NDArray[np.bool_]


def read_only(values: NDArray[Any]) -> NDArray[Any]:
    """Make a read-only view. Numba compiles a kernel separately for these, so all its callers should pass one kind."""
    view = values.view()
    view.flags.writeable = False
    return view


def as_ids(values: NDArray[np.integer]) -> Int32Array:
    """Convert numbers of pieces, packs or iterations to the type of kernels (int32[n]); the same array if it has that
    type."""
    return np.asarray(values, dtype=np.int32)


def blocks_of(offsets: Int64Array, size: int) -> Iterator[slice]:
    """Yield consecutive parts of p packs or iterations (offsets int64[p+1]), of at most so many members or one of
    them."""
    first = 0
    while first < len(offsets) - 1:
        stop = max(first + 1, int(np.searchsorted(offsets, offsets[first] + size, side="right")) - 1)
        yield slice(first, stop)
        first = stop


MOST_PIECES = 2**31 - 1
"""Most pieces of an epoch, and most samples of a store: their numbers are int32."""

WHOLE = 2**31 - 1
"""`Pieces.depth` of a piece that is not cut."""
FILLER = -1
"""`slot_pack` of a slot without a pack: the rank runs a micro-batch without loss."""


@dataclass(frozen=True, kw_only=True)
class Pieces:
    """The m pieces that are packed: whole samples or items, or parts of those that were cut.

    A piece of an item is some consecutive branches of it, each perhaps cut at a depth. Where samples are flat, each is
    one branch: the columns of branches are numbers (int32[]), and the last three are None. Among items, flat samples
    (`SAMPLE`) are cut as in a plan without items, by `start` and `length`.
    """

    samples: Int32Array | None
    """int32[m]: sample id; a sample with weight 2 appears twice. None: piece i is sample i, all of it."""
    start: Int32Array
    """int32[m]: first token of the piece in its sample; 0 unless cut."""
    length: Int32Array
    """int32[m]: tokens, of trees unique ones; at least 1."""
    first_branch: Int32Array = field(default_factory=partial(np.array, 0, dtype=np.int32))
    """int32[m]"""
    stop_branch: Int32Array = field(default_factory=partial(np.array, 1, dtype=np.int32))
    """int32[m]: one past the last."""
    depth: Int32Array = field(default_factory=partial(np.array, WHOLE, dtype=np.int32))
    """int32[m]: tokens of each branch that stay; 2^31 - 1 for all."""
    loss_terms: Int32Array | None = None
    """int32[m]: M, see `plan.core.items`."""
    work: Int64Array | None = None
    """int64[m]: attention work, see `format.trees`; None: the square of the length."""
    path_tokens: Int64Array | None = None
    """int64[m]: K."""

    @classmethod
    def of(cls, columns: Mapping[str, NDArray[Any]]) -> Self:
        """Make the pieces of what `columns` gave, or of some of each column; raise KeyError if one is missing."""
        of_items = [each.name for each in fields(cls)[3:]]
        names = ["start", "length", *(of_items if columns.keys() & {*of_items} else [])]
        return cls(samples=columns["sample"], **{name: columns[name] for name in names})

    def columns(self) -> dict[str, NDArray[Any]]:
        """Return the arrays ([m] each) by their names in a plan's file. Where `samples` is None, O(m)."""
        others = {name: values for name, values in vars(self).items() if name != "samples" and np.ndim(values)}
        return {"sample": self.sample} | others

    def __len__(self) -> int:
        return len(self.length)

    @property
    def of_items(self) -> bool:
        """Whether these are pieces of items."""
        return self.work is not None

    @property
    def needs(self) -> tuple[NDArray[np.integer], ...]:
        """int[m] each: tokens, and what else rows have limited room for: of items, loss terms and path tokens."""
        if self.loss_terms is None or self.path_tokens is None:
            return (self.length,)
        return self.length, self.loss_terms, self.path_tokens

    def sizes(self, limits: Sequence[int]) -> Int32Array:
        """Compute the tokens that each piece takes of a capacity, where all `Plan.limits` are one: int32[m]. O(m)."""
        found = self.length
        for need, percent in zip(self.needs[1:], limits, strict=False):
            share = np.minimum(-(-100 * need.astype(np.int64) // percent), 2**31 - 1)
            found = np.maximum(found, share).astype(np.int32)
        return found

    @property
    def num_branches(self) -> Int32Array:
        """int32[m]: samples in each, of no memory where that is one."""
        return np.broadcast_to(self.stop_branch - self.first_branch, len(self))

    def num_samples(self, packs: Packs) -> Int64Array:
        """Count the samples of each pack (int64[p]), which of items are branches. O(m) for items."""
        if not self.of_items:
            return np.diff(packs.offsets)
        return np.add.reduceat(self.num_branches[packs.pieces], packs.offsets[:-1], dtype=np.int64)

    def take(self, chosen: NDArray[np.integer] | slice) -> Self:
        """Select these pieces, in this order (int[k])."""
        return self.of({name: values[chosen] for name, values in self.columns().items()})

    @property
    def sample(self) -> Int32Array:
        """The sample id of each piece (int32[m]). Where `samples` is None, made when asked for: O(m)."""
        return np.arange(len(self), dtype=np.int32) if self.samples is None else self.samples


class Lost(NamedTuple):
    """k runs of branches of which tokens are lost, by rising sample; a flat sample is one branch."""

    sample: Int32Array
    """int32[k]"""
    first_branch: Int32Array
    """int32[k]"""
    stop_branch: Int32Array
    """int32[k]: one past the last."""
    kept: Int32Array
    """int32[k]: tokens of each branch that stay; 0: the branches are left out."""


class PieceLoss(NamedTuple):
    """The loss of m pieces. No strategy sees it; the counts of packs and steps come from it."""

    tokens: Int32Array
    """int32[m]: loss tokens."""
    weights: Float64Array | None = None
    """float64[m]: the sum of their weights; None: each is 1."""


@dataclass(frozen=True, kw_only=True)
class Packs:
    """p packs over m pieces."""

    offsets: Int64Array
    """int64[p+1]: pack k holds `pieces[offsets[k]:offsets[k+1]]`."""
    pieces: Int32Array
    """int32[m]: indices into the pieces."""
    group: Int16Array
    """int16[p]: index of each pack's group."""
    cp_sharding: Int8Array
    """int8[p]: how the CP ranks of its replica divide its row, an index of `format.sharding.PLANNED`; 0 without CP."""

    def __len__(self) -> int:
        return len(self.group)


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """One epoch: k slots in i iterations in s steps.

    A *replica* is the GPUs `first_gpu .. first_gpu + n - 1`, which run packs together in their group's layout of n
    GPUs. The replicas of an iteration divide all GPUs, and may have unlike layouts. A slot is one pack on one
    replica in one iteration, a micro-batch. Where all GPUs run in lockstep, a replica has one slot an iteration; else
    it has one or more, which it runs one after another. Slots are sorted by iteration, then first GPU.
    """

    slot_iteration: Int64Array
    """int64[k]"""
    slot_pack: Int32Array
    """int32[k]: pack, or FILLER."""
    slot_group: Int16Array
    """int16[k]: how the slot runs; its pack's group."""
    slot_first_gpu: Int32Array
    """int32[k]: first GPU of the replica."""
    slot_row_length: Int32Array
    """int32[k]: tokens to which a trainer with fixed shapes pads the row. Where all GPUs run in lockstep, equal within
    a group and iteration."""
    iteration_step: Int64Array
    """int64[i]: the optimizer step of each iteration; never decreases."""
    step_seconds: NDArray[np.float32] | None = None
    """float32[s]: predicted seconds of each step; None where nothing says what to predict with."""

    @property
    def begins_replica(self) -> BoolArray:
        """Whether a slot is the first of its replica in its iteration (bool[k]). O(k)."""
        return begins_run(self.slot_iteration, self.slot_first_gpu)

    @property
    def num_iterations(self) -> int:
        """Iterations of the epoch; equal for all ranks."""
        return len(self.iteration_step)

    @property
    def num_steps(self) -> int:
        """Optimizer steps of the epoch."""
        return int(self.iteration_step[-1]) + 1 if len(self.iteration_step) else 0

    def step_of_packs(self, num_packs: int) -> Int64Array:
        """Find the step of each pack (int64[p]); 0 of packs that the schedule does not run. O(slots)."""
        step = np.zeros(num_packs + 1, dtype=np.int64)  # FILLER is -1, the last one.
        step[self.slot_pack] = self.iteration_step[self.slot_iteration]
        return step[:-1]

    def short_packs(self, num_packs: int, groups: Sequence[Group]) -> BoolArray:
        """Whether each pack (bool[p]) is in a row below the capacity, in a schedule of all packs. O(slots)."""
        capacity = np.array([each.capacity for each in groups], dtype=np.int64)
        is_short = np.zeros(num_packs + 1, dtype=np.bool_)  # FILLER is -1, the last one.
        is_short[self.slot_pack] = self.slot_row_length < capacity[self.slot_group]
        return is_short[:-1]


@dataclass(frozen=True, kw_only=True)
class Delays:
    """The delays of pieces that a plan runs at another step than a stream would bring them (WLB-LLM)."""

    arrival: Int64Array
    """int64[m]: the step in which each piece arrives."""
    thresholds: tuple[int, ...] = ()
    """Tokens, rising: lengths from which documents wait, each with a queue of its own."""
    num_carried: int = 0
    """Pieces that found no room where they were first tried."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Everything that training needs to know before a token is written."""

    groups: tuple[Group, ...]
    """By increasing capacity."""
    num_gpus: int
    pieces: Pieces
    packs: Packs
    epochs: tuple[Schedule, ...]
    """At least one; the metrics describe epoch 0."""
    max_samples: int = UNLIMITED
    """Most pieces of a pack."""
    limits: tuple[int, ...] = ()
    """Percent of a group's capacity that a pack may take of each other need than tokens: of trees, loss terms and path
    tokens; none where samples are flat."""
    mask: Mask = "document"
    """With which the packs are trained on; it decides their attention work."""
    lockstep: Lockstep = None
    """GPUs, in whole replicas, that share collectives in every micro-batch. None: all of them (FSDP, ZeRO-2 and 3), so
    that a replica has one slot an iteration. 1: each replica on its own (DDP, ZeRO-1), with one slot or more.
    Between: so many that share the weights (HSDP), planned as None and predicted as it runs."""
    is_padded: bool = False
    """Whether a pack is a batch whose samples are padded to its longest: a baseline, which is never written."""
    delays: Delays | None = None
    """Delays of epoch 0; None where no stream is planned from, and for a plan that was read."""

    @property
    def replicas(self) -> dict[Layout, Int32Array]:
        """The first GPUs (int32, rising) of the replicas of all epochs, by layout, rising. O(slots)."""
        found = {}
        layouts = sorted({group.layout for group in self.groups})
        of_group = np.array([layouts.index(group.layout) for group in self.groups])
        for number, layout in enumerate(layouts):
            is_used = np.zeros(self.num_gpus, dtype=np.bool_)
            for schedule in self.epochs:
                is_used[schedule.slot_first_gpu[of_group[schedule.slot_group] == number]] = True
            if is_used.any():
                found[layout] = np.flatnonzero(is_used).astype(np.int32)
        return found

    def slot_gpus(self, schedule: Schedule) -> Int64Array:
        """Count the GPUs of each slot's replica (int64[k])."""
        return np.array([group.num_gpus for group in self.groups], dtype=np.int64)[schedule.slot_group]
