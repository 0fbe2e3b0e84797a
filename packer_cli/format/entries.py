"""The entries of `hbpack.json`: files, groups, replicas, epochs, and the generations of a set."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, NamedTuple

from packer_cli.errors import ConfigError
from packer_cli.format.checksums import find_path_fault, is_checksum
from packer_cli.format.layout import Layout
from packer_cli.format.records import Rule
from packer_cli.format.schema import iterations_path, ranks_path

RelativePath = Annotated[str, Rule(find_path_fault)]
"""Below the folder of the manifest."""
Checksum = Annotated[
    str,
    Rule(lambda value: None if is_checksum(value) else "not an xxh3-128 in hex", (("pattern", "^[0-9a-f]{32}$"),)),
]
"""xxh3-128 in hex."""
Count = Annotated[int, Rule(lambda value: None if value >= 0 else "below 0", (("minimum", 0),))]


@dataclass(frozen=True, kw_only=True)
class FileInfo:
    """One file of the set."""

    path: RelativePath
    """Relative to the folder of the manifest."""
    num_bytes: Count
    xxh3: Checksum
    """xxh3-128 of the file."""


@dataclass(frozen=True, kw_only=True)
class ShardInfo(FileInfo):
    """One shard file."""

    first_pack: Count
    """Id of its first pack; row r holds pack `first_pack + r`."""
    num_packs: Count


@dataclass(frozen=True, kw_only=True)
class PartInfo(FileInfo):
    """One part of the token store."""

    num_samples: Count


@dataclass(frozen=True, kw_only=True)
class GroupInfo:
    """One group and its shards."""

    name: str
    capacity: int
    """Most tokens of a pack."""
    sp_size: int
    """Sequence-parallel degree."""
    cp_size: int = 1
    """Context-parallel degree."""
    tp_size: int = 1
    """Tensor-parallel degree."""
    pp_size: int = 1
    """Pipeline stages."""
    vpp_size: int = 1
    """Parts of each stage that take turns; None for undivided stages."""
    checkpoint_layers: int
    align: int = 1
    """Each sample counts at its length rounded up to a multiple of this."""
    num_packs: int
    num_samples: int
    """Pieces: a sample that was cut counts once a piece. With trees, branches."""
    most_samples: int
    """Pieces of the pack that holds the most; with trees, branches."""
    num_tokens: int
    num_loss_tokens: int
    loss_weight: float | None = None
    """Sum of the weights of loss tokens; None if the set has no weights, as all are 1."""
    shards: tuple[ShardInfo, ...]

    @property
    def layout(self) -> Layout:
        """The division of the model and its rows among the GPUs of a replica."""
        return Layout(sp=self.sp_size, cp=self.cp_size, tp=self.tp_size, pp=self.pp_size)


@dataclass(frozen=True, kw_only=True)
class Replicas:
    """The replicas of one layout: where the GPUs begin that run packs together, in any of the epochs."""

    sp_size: Count
    cp_size: Count = 1
    tp_size: Count = 1
    pp_size: Count = 1
    first_gpus: tuple[Count, ...]
    """Rising. One GPU may be in several, in different iterations."""

    @property
    def layout(self) -> Layout:
        """The layout, which is of more than one GPU."""
        return Layout(sp=self.sp_size, cp=self.cp_size, tp=self.tp_size, pp=self.pp_size)


@dataclass(frozen=True, kw_only=True)
class RankBatches:
    """The record batches of a rank manifest with several: ranks that read the same, side by side, have one.

    A message of Arrow's IPC format holds each, so that one request fetches the rows of a rank.
    """

    firsts: tuple[Count, ...]
    """The first rank of each; the ranks of one end where those of the next begin."""
    offsets: tuple[Count, ...]
    """The byte of the file at which each begins, and the one at which the last ends."""
    xxh3: tuple[Checksum, ...]
    """xxh3-128 of the bytes of each."""


@dataclass(frozen=True, kw_only=True)
class RankFile:
    """A rank manifest: of ranks that read the same, side by side, or in a set for many ranks of several such."""

    first: Count
    """The first rank."""
    last: Count
    """The last rank."""
    xxh3: Checksum
    """xxh3-128 of the file."""
    batches: RankBatches | None = None
    """The record batches where there are several; None: all ranks of the file read the same."""

    @property
    def firsts(self) -> tuple[int, ...]:
        """The first rank of each record batch."""
        return (self.first,) if self.batches is None else self.batches.firsts


class RankRange(NamedTuple):
    """The place of a rank's rows."""

    path: str
    xxh3: str
    """xxh3-128 of the bytes."""
    span: tuple[int, int] | None
    """The bytes of the file, which are a message of Arrow's IPC format; None: all of it."""


@dataclass(frozen=True, kw_only=True)
class EpochInfo:
    """One epoch's rank manifests."""

    path: RelativePath
    """Their folder."""
    num_iterations: Count
    """Iterations in these files, which number them from 0."""
    num_steps: Count
    """Steps in these files, which number them from 0."""
    first_step: Count = 0
    """Steps of the epoch that came before the steps of these files, on another number of GPUs."""
    iterations_xxh3: Checksum
    """xxh3-128 of `iterations.arrow`, what all ranks have in common."""
    ranks: tuple[RankFile, ...]
    """Files in the order of the ranks, each of which is in one file. There are at most 256."""

    @property
    def files(self) -> Iterator[tuple[str, str]]:
        """(path, xxh3-128) of each file, `iterations.arrow` first."""
        yield iterations_path(self.path), self.iterations_xxh3
        for ranks in self.ranks:
            yield ranks_path(self.path, ranks.first, ranks.last), ranks.xxh3

    @property
    def first_ranks(self) -> Iterator[int]:
        """The first of all ranks that read the same, side by side."""
        return (first for ranks in self.ranks for first in ranks.firsts)

    def find_rank(self, rank: int) -> RankRange:
        """Find the rows of a rank."""
        ranks = next(ranks for ranks in self.ranks if ranks.first <= rank <= ranks.last)
        path, batches = ranks_path(self.path, ranks.first, ranks.last), ranks.batches
        if batches is None:
            return RankRange(path, ranks.xxh3, None)
        number = bisect_right(batches.firsts, rank) - 1
        return RankRange(path, batches.xxh3[number], batches.offsets[number : number + 2])  # type: ignore[arg-type]


@dataclass(frozen=True, kw_only=True)
class Generation:
    """The set before a change of the number of GPUs (`hbpack rebalance`)."""

    fingerprint: str
    num_gpus: int
    first_epoch: int
    epochs: tuple[EpochInfo, ...]
    schedules: FileInfo | None = None
    """The file that the rank manifests were made from; None where that is the plan."""

    def find_epoch(self, epoch: int, name: str = "epoch") -> tuple[EpochInfo, bool]:
        """Find the written epoch that an epoch is or repeats, and whether it is that one.

        Args:
            name: what asked for it, for messages.

        Raises:
            ConfigError: the epoch was over before the first one that was written, or there is no whole one to repeat.
        """
        if epoch < self.first_epoch:
            raise ConfigError(
                f"{name} {epoch} was over when the set was dealt to {self.num_gpus} GPUs; choose {self.first_epoch} "
                "or a later one"
            )
        if epoch - self.first_epoch < len(self.epochs):
            return self.epochs[epoch - self.first_epoch], True
        # Without steps that ran before it on another number of GPUs, an epoch is whole.
        whole = next((entry for entry in self.epochs if not entry.first_step), None)
        if whole is None:
            raise ConfigError(
                f"{name} {epoch} would repeat a whole epoch, and this set holds none; choose one that it holds"
            )
        return whole, False


@dataclass(frozen=True, kw_only=True)
class Origin:
    """The place where a set for another number of GPUs goes on."""

    fingerprint: str
    """Fingerprint of the generation that was left, one of `history`."""
    epoch: int
    step: int
    """The first step that the left generation did not run."""
    iteration: int
    """The first iteration that the left generation did not run, as it numbered them."""
