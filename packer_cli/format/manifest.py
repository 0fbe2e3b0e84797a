"""`hbpack.json`: the manifest of a packed data set. Its JSON Schema is `schemas/manifest.schema.json`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Annotated, Any, ClassVar, Literal

from packer_cli import __version__
from packer_cli.errors import FormatError, VersionError
from packer_cli.format import epochs
from packer_cli.format.checksums import check_json, check_path, describe_signature, is_checksum, sign_json
from packer_cli.format.choice import GroupChoice
from packer_cli.format.constants import FORMAT_NAME, FORMAT_VERSION, Lockstep
from packer_cli.format.metrics import Counts, PlanMetrics
from packer_cli.format.records import FOR_SCHEMA, Rule, known_values, read_record, shown, sort_keys
from packer_cli.format.schema import iterations_path, ranks_path


def _find_path_fault(path: str) -> str | None:
    try:
        check_path(path)
    except ValueError:
        return "not a path inside the set's folder"
    return None


RelativePath = Annotated[str, Rule(_find_path_fault)]
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

    __pydantic_config__: ClassVar[dict[str, Any]] = FOR_SCHEMA

    path: RelativePath
    """Relative to the folder of the manifest."""
    num_bytes: Count
    xxh3: Checksum
    """xxh3-128 of the file."""


@dataclass(frozen=True, kw_only=True)
class ShardInfo(FileInfo):
    """One shard file."""

    # Again, as pydantic finds no docstrings of a base class.
    path: RelativePath
    """Relative to the folder of the manifest."""
    xxh3: Checksum
    """xxh3-128 of the file."""
    first_pack: Count
    """Id of its first pack; row r holds pack `first_pack + r`."""
    num_packs: Count


@dataclass(frozen=True, kw_only=True)
class GroupInfo:
    """One group and its shards."""

    __pydantic_config__: ClassVar[dict[str, Any]] = FOR_SCHEMA

    name: str
    capacity: int
    """Most tokens of a pack."""
    sp_size: int
    """Sequence-parallel degree."""
    checkpoint_layers: int
    align: int = 1
    """Each sample counts at its length rounded up to a multiple of this."""
    num_packs: int
    num_samples: int
    """Pieces: a sample that was cut counts once a piece."""
    most_samples: int
    """Pieces of the pack that holds the most."""
    num_tokens: int
    num_loss_tokens: int
    shards: tuple[ShardInfo, ...]


@dataclass(frozen=True, kw_only=True)
class Replicas:
    """The replicas of one SP degree: where the GPUs begin that run packs together, in any of the epochs."""

    __pydantic_config__: ClassVar[dict[str, Any]] = FOR_SCHEMA

    sp_size: Count
    """Above 1."""
    first_gpus: tuple[Count, ...]
    """Rising. One GPU may be in several, in different iterations."""


@dataclass(frozen=True, kw_only=True)
class RankFile:
    """The manifest of ranks that read the same, side by side."""

    __pydantic_config__: ClassVar[dict[str, Any]] = FOR_SCHEMA

    first: Count
    """The first rank."""
    last: Count
    """The last rank."""
    xxh3: Checksum
    """xxh3-128 of the file."""


@dataclass(frozen=True, kw_only=True)
class EpochInfo:
    """One epoch's rank manifests."""

    __pydantic_config__: ClassVar[dict[str, Any]] = FOR_SCHEMA

    path: RelativePath
    """Their folder."""
    num_iterations: Count
    """In these files, which number them from 0."""
    num_steps: Count
    """In these files, which number them from 0."""
    first_step: Count = 0
    """Steps of the epoch that came before these, on another number of GPUs."""
    iterations_xxh3: Checksum
    """xxh3-128 of `iterations.arrow`, what all ranks have in common."""
    ranks: tuple[RankFile, ...]
    """In the order of the ranks, each of which is in one of them."""

    @property
    def files(self) -> Iterator[tuple[str, str]]:
        """(path, xxh3-128) of each file, `iterations.arrow` first."""
        yield iterations_path(self.path), self.iterations_xxh3
        for ranks in self.ranks:
            yield ranks_path(self.path, ranks.first, ranks.last), ranks.xxh3

    def file_of(self, rank: int) -> tuple[str, str]:
        """(path, xxh3-128) of the manifest of a rank."""
        ranks = next(ranks for ranks in self.ranks if ranks.first <= rank <= ranks.last)
        return ranks_path(self.path, ranks.first, ranks.last), ranks.xxh3


@dataclass(frozen=True, kw_only=True)
class Generation:
    """What the set was before a change of the number of GPUs (`hbpack rebalance`)."""

    __pydantic_config__: ClassVar[dict[str, Any]] = FOR_SCHEMA

    fingerprint: str
    num_gpus: int
    first_epoch: int
    epochs: tuple[EpochInfo, ...]
    schedules: FileInfo | None = None
    """The file that the rank manifests were made from; None where that is the plan."""

    def find_epoch(self, epoch: int, name: str = "epoch") -> tuple[EpochInfo, bool]:
        """The written epoch that an epoch is or repeats, and whether it is that one.

        Args:
            name: what asked for it, for messages.

        Raises:
            ConfigError: see `epochs.find_epoch`.
        """
        first_steps = [entry.first_step for entry in self.epochs]
        number, is_written = epochs.find_epoch(epoch, self.first_epoch, first_steps, self.num_gpus, name)
        return self.epochs[number], is_written


@dataclass(frozen=True, kw_only=True)
class Origin:
    """Where a set for another number of GPUs goes on."""

    __pydantic_config__: ClassVar[dict[str, Any]] = FOR_SCHEMA

    fingerprint: str
    """Of the generation that was left, one of `history`."""
    epoch: int
    step: int
    """The first step that it did not run."""
    iteration: int
    """The first iteration that it did not run, as it numbered them."""


@dataclass(frozen=True, kw_only=True)
class WriteOptions:
    """Options of `hbpack write`."""

    __pydantic_config__: ClassVar[dict[str, Any]] = FOR_SCHEMA

    shard_size: int
    """Approximate bytes of a shard."""


@dataclass(frozen=True, kw_only=True)
class SetConfig:
    """Options that decided the bytes."""

    __pydantic_config__: ClassVar[dict[str, Any]] = FOR_SCHEMA

    tokens: dict[str, Any]
    """As in `tokens.json`."""
    plan: dict[str, Any]
    """As `hbpack plan` takes them, with groups and costs as numbers."""
    group_choice: GroupChoice | None = None
    """How automatic groups were chosen; not there if you named them."""
    write: WriteOptions


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """A packed data set."""

    __pydantic_config__: ClassVar[dict[str, Any]] = {**FOR_SCHEMA, "json_schema_extra": describe_signature}

    format: Literal["hbpack"] = "hbpack"
    format_version: int = FORMAT_VERSION
    hbpack_version: str
    fingerprint: str
    """Of the tokens, the plan, the shard size and each change of the number of GPUs, and of no names: equal
    fingerprints mean equal bytes of the shards and rank manifests."""
    seed: int
    num_gpus: int
    groups: tuple[GroupInfo, ...]
    replicas: tuple[Replicas, ...]
    """Those that need a process group each, by rising degree."""
    lockstep: Lockstep = None
    """GPUs that share collectives in every micro-batch. None: all of them. 1: each replica on its own, so that ranks
    may have different numbers of micro-batches in an iteration."""
    first_epoch: int = 0
    """Number of the first of `epochs`."""
    epochs: tuple[EpochInfo, ...]
    """A loader makes those after the last one out of the first of these that is whole."""
    schedules: FileInfo | None = None
    """The file that the rank manifests were made from; None where that is the plan."""
    plan: FileInfo
    """`plan.arrow`."""
    rejected: FileInfo | None
    """`rejected.jsonl`; None where the plan stood without it."""
    history: tuple[Generation, ...] = ()
    """The set for other numbers of GPUs, as it was planned first; their rank manifests are kept."""
    origin: Origin | None = None
    """None where the set is as it was planned."""
    tokenizer: dict[str, Any]
    """Its name as the user gave it, fingerprints, vocabulary size and special ids."""
    sources: tuple[dict[str, Any], ...]
    """Inputs by source id: name and weight."""
    counts: Counts
    """What became of the records."""
    metrics: PlanMetrics
    """As `hbpack stats --json` gives them."""
    config: SetConfig
    library_versions: dict[str, str]

    @property
    def generation(self) -> Generation:
        """What the set is now, as it will stand in `history`."""
        return Generation(
            fingerprint=self.fingerprint,
            num_gpus=self.num_gpus,
            first_epoch=self.first_epoch,
            epochs=self.epochs,
            schedules=self.schedules,
        )

    @property
    def generations(self) -> tuple[Generation, ...]:
        """All of them, the one in force last."""
        return (*self.history, self.generation)

    @property
    def shards(self) -> Iterator[ShardInfo]:
        """Those of all groups, one group after another."""
        return (shard for group in self.groups for shard in group.shards)

    @property
    def has_windows(self) -> bool:
        """Whether attention sees only windows of samples in some steps (`--curriculum skyladder` or `growlength`)."""
        plan = self.config.plan
        if plan.get("curriculum", "short") == "short" or self.first_epoch > 0:
            return False
        return bool(self.epochs[0].first_step < plan["curriculum_steps"])

    @property
    def planned_fingerprint(self) -> str:
        """Of the tokens, the plan and the shard size, and so of the shards."""
        return self.history[0].fingerprint if self.history else self.fingerprint


def manifest_bytes(manifest: Manifest) -> bytes:
    """The bytes of `hbpack.json`, with its checksum. What it repeats of `plan.arrow` has its keys in order, too."""
    values, metrics = asdict(manifest), known_values(manifest.metrics)
    values["counts"] = sort_keys(values["counts"])
    values["metrics"] = metrics if manifest.history else sort_keys(metrics)
    config = {name: sort_keys(value) for name, value in values["config"].items() if value is not None}
    values["config"] = {**config, "tokens": manifest.config.tokens}
    return sign_json(values)


def parse_manifest(data: bytes, name: str, remedy: str, *, compares: bool = True) -> Manifest:
    """The bytes of `hbpack.json`, wherever they were read.

    Args:
        name: of the file, for messages.
        remedy: what helps where it is damaged.
        compares: whether the checksum of the manifest itself is compared.

    Raises:
        FormatError: they are damaged.
        VersionError: they have another format version.
    """
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{name!r} is not JSON ({error}); {remedy}") from None
    if not isinstance(value, dict) or value.get("format") != FORMAT_NAME:
        raise FormatError(f'{name!r} is not the manifest of a packed set (no "format": "hbpack")')
    version = value.get("format_version")
    if version != FORMAT_VERSION:  # Before the checksum, which another version may have elsewhere, or not at all.
        raise VersionError(
            f"{name!r} has format version {version!r}; hbpack {__version__} reads version {FORMAT_VERSION}; "
            "run hbpack pack again, or read the set with the release that wrote it"
        )
    try:
        if compares:
            check_json(data)
        value.pop("xxh3", None)
        manifest = read_record(Manifest, value)
        _check(manifest)
    except ValueError as error:
        raise FormatError(f"{name!r} is damaged ({error}); {remedy}") from None
    return manifest


def _check(manifest: Manifest) -> None:
    if not manifest.epochs:
        raise ValueError("it lists no epochs")
    for group in manifest.groups:
        if group.capacity < 1 or group.sp_size < 1:
            raise ValueError("a group has no capacity or no degree")
        if group.align < 1:
            raise ValueError("a group aligns samples to less than a token")
    for replicas in manifest.replicas:
        if max(replicas.first_gpus, default=0) + replicas.sp_size > manifest.num_gpus:
            raise ValueError(f"a replica of {replicas.sp_size} GPUs ends after GPU {manifest.num_gpus - 1}")
    for generation in manifest.generations:
        for epoch in generation.epochs:
            borders = [0, *(ranks.last + 1 for ranks in epoch.ranks)]
            firsts = [ranks.first for ranks in epoch.ranks]
            if borders != [*firsts, generation.num_gpus] or any(a >= b for a, b in pairwise(borders)):
                raise ValueError(f"the ranks of {epoch.path} are not 0 to {generation.num_gpus - 1}, each once")
    for key in ("vocab_size", "pad_token_id", "eos_token_id"):
        value = manifest.tokenizer.get(key)
        if value is not None and type(value) is not int:
            raise ValueError(f"tokenizer.{key} is {shown(value)}, not an integer")
