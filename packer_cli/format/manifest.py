"""`hbpack.json`: the manifest of a packed data set. Its JSON Schema is `schemas/manifest.schema.json`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar, Literal

import pyarrow as pa

from packer_cli.errors import ConfigError, FormatError, VersionError, fault_of
from packer_cli.format.checksums import check_bytes, check_json, describe_signature, inside, require_damage, sign_json
from packer_cli.format.constants import FORMAT_NAME, FORMAT_VERSION, Lockstep
from packer_cli.format.entries import EpochInfo, FileInfo, Generation, GroupInfo, Origin, PartInfo, Replicas, ShardInfo
from packer_cli.format.metrics import Counts, GroupChoice, PlanMetrics
from packer_cli.format.records import json_values, read_record, sort_keys
from packer_cli.format.schema import RowColumns, index_schema, token_type
from packer_cli.format.tokens import InputInfo, PlanOptions, SampleOptions, TokenizerInfo
from packer_cli.remote.local import open_source
from packer_cli.remote.path import RemotePath, is_remote, path_from
from packer_cli.version import __version__


@dataclass(frozen=True, kw_only=True)
class WriteOptions:
    """Options of `hbpack write`."""

    shard_size: int
    """Approximate bytes of a shard."""
    index_only: bool = False
    """Whether the shards leave the tokens in the token store, and `tokens` says where."""


@dataclass(frozen=True, kw_only=True)
class SetConfig:
    """Options that decided the bytes."""

    tokens: SampleOptions
    """The options of the samples, as in `tokens.json`."""
    plan: Mapping[str, object]
    """Options as `hbpack plan` takes them, with groups and costs as numbers. A strategy may have options of its
    own."""
    group_choice: GroupChoice | None = None
    """The choice of automatic groups; not there if you named them."""
    write: WriteOptions


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """A packed data set."""

    __pydantic_config__: ClassVar[dict[str, Any]] = {"json_schema_extra": describe_signature}

    format: Literal["hbpack"] = "hbpack"
    format_version: int = FORMAT_VERSION
    """3 if rows are trees (`format.trees`), else 2."""
    folder: str | None = None
    """The current version's folder, which has the files, in the manifest beside the versions; None in that folder."""
    hbpack_version: str
    fingerprint: str
    """Fingerprint of the tokens, the plan, the shard size and each change of the number of GPUs, and of no names:
    equal fingerprints mean equal bytes of the shards and rank manifests."""
    seed: int
    num_gpus: int
    groups: tuple[GroupInfo, ...]
    replicas: tuple[Replicas, ...]
    """The replicas of more than one GPU, by layout."""
    lockstep: Lockstep = None
    """GPUs that share collectives in every micro-batch. None: all of them. 1: each replica on its own, so that ranks
    may have different numbers of micro-batches in an iteration. More: those that share the weights (HSDP)."""
    first_epoch: int = 0
    """Number of the first of `epochs`."""
    epochs: tuple[EpochInfo, ...]
    """Epochs that were written. A loader makes the epochs after the last one out of the first that is whole."""
    schedules: FileInfo | None = None
    """The file that the rank manifests were made from; None where that is the plan."""
    plan: FileInfo
    """`plan.arrow`."""
    rejected: FileInfo | None
    """`rejected.jsonl`; None where the plan stood without it."""
    tokens: tuple[PartInfo, ...] = ()
    """The parts of the token store, in order, where the shards leave the tokens there."""
    history: tuple[Generation, ...] = ()
    """The set for other numbers of GPUs, as it was planned first; their rank manifests are kept."""
    origin: Origin | None = None
    """The place where this set goes on; None where the set is as it was planned."""
    tokenizer: TokenizerInfo
    sources: tuple[InputInfo, ...]
    """Inputs by source id."""
    counts: Counts
    """Counts of the records by what became of them."""
    metrics: PlanMetrics
    """Figures as `hbpack stats --json` gives them."""
    config: SetConfig
    library_versions: dict[str, str]
    tokens_fingerprint: str | None = None
    """Fingerprint of the token store: sets of the same tokens have the same. None: the set is older than this."""

    @property
    def generation(self) -> Generation:
        """The set as it is now, as `history` will have it."""
        return Generation(**{each.name: getattr(self, each.name) for each in fields(Generation)})

    @property
    def generations(self) -> tuple[Generation, ...]:
        """All generations, the one in force last."""
        return (*self.history, self.generation)

    @property
    def shards(self) -> Iterator[ShardInfo]:
        """The shards of all groups, one group after another."""
        return (shard for group in self.groups for shard in group.shards)

    @cached_property
    def planned(self) -> PlanOptions:
        """The options of the plan that readers ask for."""
        known: dict[str, Any] = {name: self.config.plan[name] for name in _PLANNED if name in self.config.plan}
        return PlanOptions(**known)

    @property
    def is_weighted(self) -> bool:
        """Whether loss tokens have weights other than 1."""
        return any(group.loss_weight is not None for group in self.groups)

    @property
    def unit(self) -> str:
        """The noun for what rows hold one after another: "sample", or "item" where they may share prefixes."""
        return self.counts.unit

    def require_samples(self, name: str, reader: str, remedy: str) -> None:
        """Raise ConfigError for a set of items, which what reads samples alone would take for one sample each.

        Args:
            name: of the set, for messages.
            reader: what reads it, with a verb, such as "exports have".
        """
        if self.unit == "item":
            raise ConfigError(
                f"{name} has preference pairs, groups or turns, which share prefixes, and {reader} no place for "
                f"these: {remedy}"
            )

    @property
    def num_pairs(self) -> int:
        """Preference pairs in its packs, each counted once."""
        return 0 if self.counts.items is None else self.counts.items.pairs

    @property
    def has_pairs_alone(self) -> bool:
        """Whether all items in its packs are preference pairs."""
        counts = self.counts
        return 0 < self.num_pairs == counts.samples - counts.left_out_by_weight - counts.dropped

    @property
    def planned_fingerprint(self) -> str:
        """Fingerprint of the tokens, the plan and the shard size, and so of the shards."""
        return self.history[0].fingerprint if self.history else self.fingerprint

    @property
    def pad_token_id(self) -> int:
        """The tokenizer's pad token, else its end-of-text token, else 0."""
        known = (self.tokenizer.pad_token_id, self.tokenizer.eos_token_id)
        return next((token for token in known if token is not None), 0)

    @property
    def token_type(self) -> pa.DataType:
        """Type of the ids in shards."""
        return token_type(self.tokenizer.vocab_size)

    @property
    def schema(self) -> pa.Schema:
        """The columns of the shards."""
        token = self.token_type
        if self.tokens:
            return index_schema(token)
        return RowColumns(self.is_weighted, self.unit == "item").shard(token)


_PLANNED = [field.name for field in fields(PlanOptions)]


def manifest_bytes(manifest: Manifest) -> bytes:
    """Make the bytes of `hbpack.json`, with its checksum. Values that repeat `plan.arrow` have their keys in order,
    too."""
    values, metrics = asdict(manifest), json_values(manifest.metrics)
    values["epochs"], values["history"] = json_values(manifest.epochs), json_values(manifest.history)
    values["counts"] = sort_keys(json_values(manifest.counts))
    values["metrics"] = metrics if manifest.history else sort_keys(metrics)
    config = values["config"].items()
    values["config"] = {name: sort_keys(value) for name, value in config if value is not None}
    return sign_json(values)


def parse_manifest(data: bytes, name: str, remedy: str, *, compares: bool = True) -> Manifest:
    """Read the manifest in the bytes of `hbpack.json`, wherever they were read.

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
        raise FormatError(f'{name!r} is not the manifest of a packed set (no "format": "hbpack"); name another folder')
    version = value.get("format_version")
    if not isinstance(version, int):
        raise FormatError(f"{name!r} is damaged (it has no format version); {remedy}")
    # Before the checksum, which another version may have elsewhere, or not at all.
    if version != FORMAT_VERSION:
        raise VersionError(
            f"{name!r} has format version {version!r}; hbpack {__version__} reads version {FORMAT_VERSION}; run "
            "hbpack pack again, or read the set with the release that wrote it"
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
        if group.capacity < 1 or min(group.layout) < 1:
            raise ValueError("a group has no capacity or no degree")
        if group.align < 1:
            raise ValueError("a group aligns samples to less than a token")
    for replicas in manifest.replicas:
        if max(replicas.first_gpus, default=0) + replicas.layout.num_gpus > manifest.num_gpus:
            raise ValueError(f"a replica of {replicas.layout.num_gpus} GPUs ends after GPU {manifest.num_gpus - 1}")
    for generation in manifest.generations:
        for epoch in generation.epochs:
            borders = [0, *(ranks.last + 1 for ranks in epoch.ranks)]
            firsts = [ranks.first for ranks in epoch.ranks]
            own = [*epoch.first_ranks, generation.num_gpus]
            is_rising = all(a < b for a, b in pairwise(own)) and {*firsts} <= {*own}
            if borders != [*firsts, generation.num_gpus] or not is_rising:
                raise ValueError(f"the ranks of {epoch.path} are not 0 to {generation.num_gpus - 1}, each once")
            for found in (ranks.batches for ranks in epoch.ranks if ranks.batches is not None):
                if not len(found.firsts) == len(found.xxh3) == len(found.offsets) - 1:
                    raise ValueError(f"the record batches of {epoch.path} lack offsets or checksums")


class SetFolder:
    """The files of the packed set in a folder, by their paths there."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @property
    def remedy(self) -> str:
        """The remedy for a file that is damaged or missing."""
        return "copy the set again" if is_remote(self.root) else "run hbpack write, which writes it again"

    def name(self, path: str) -> str:
        """Make a file's full name, for messages."""
        return str(path_from(self.root, path))

    @contextmanager
    def reading(self, path: str) -> Iterator[None]:
        """Turn all that goes wrong while a file is read into an error that names the file and the remedy.

        Raises:
            FormatError: it is missing or damaged.
            RemoteError: it cannot be fetched.
        """
        try:
            yield
        except (FormatError, OSError, pa.ArrowException, KeyError, IndexError, ValueError) as error:
            require_damage(error)
            raise FormatError(f"{self.name(path)!r} {fault_of(error)}; {self.remedy}") from None

    def read(self, path: str, xxh3: str | None = None, span: tuple[int, int] | None = None) -> pa.Buffer:
        """Read a file whole, or these bytes of it. Raises OSError, or ValueError, also if it has another checksum.

        Price: of bytes of a remote file, one request.
        """
        file = inside(self.root, path)
        if span is not None and isinstance(file, RemotePath):
            data = pa.py_buffer(file.read_range(*span))
        else:
            with open_source(file) as source:
                source.seek(span[0] if span else 0)
                data = source.read_buffer(span and span[1] - span[0])
        if xxh3 is not None and (why := check_bytes(data, xxh3)):
            raise ValueError(why)
        return data

    def source(self, path: str) -> pa.NativeFile:
        """Open a file for pyarrow; ranges of a remote one are read. Raises OSError."""
        return open_source(path_from(self.root, path))
