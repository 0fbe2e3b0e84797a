"""`hbpack.json`: the manifest of a packed data set. Its JSON Schema is `schemas/manifest.schema.json`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from packer_cli.errors import FormatError, InputError
from packer_cli.files import atomic_file
from packer_cli.format import epochs
from packer_cli.format.checksums import check_json, check_path, describe_signature, sign_json
from packer_cli.format.constants import FORMAT_VERSION, MANIFEST_NAME

RelativePath = Annotated[str, AfterValidator(check_path)]
"""Below the folder of the manifest."""
Checksum = Annotated[str, Field(pattern="^[0-9a-f]{32}$")]
"""xxh3-128 in hex."""
Count = Annotated[int, Field(ge=0)]


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, use_attribute_docstrings=True)


class FileInfo(_Model):
    """One file of the set."""

    path: RelativePath
    """Relative to the folder of the manifest."""
    num_bytes: Count
    xxh3: Checksum
    """xxh3-128 of the file."""


class ShardInfo(FileInfo):
    """One shard file."""

    first_pack: Count
    """Id of its first pack; row r holds pack `first_pack + r`."""
    num_packs: Count


class GroupInfo(_Model):
    """One group and its shards."""

    name: str
    capacity: int
    """Most tokens of a pack."""
    sp_size: int
    """Sequence-parallel degree."""
    checkpoint_layers: int
    num_packs: int
    num_samples: int
    """Pieces: a sample that was cut counts once a piece."""
    num_tokens: int
    num_loss_tokens: int
    shards: tuple[ShardInfo, ...]


class EpochInfo(_Model):
    """One epoch's rank manifests."""

    path: RelativePath
    """Their folder."""
    num_iterations: Count
    """In these files, which number them from 0."""
    num_steps: Count
    """In these files, which number them from 0."""
    first_step: Count = 0
    """Steps of the epoch that came before these, on another number of GPUs."""
    rank_xxh3: tuple[Checksum, ...]
    """xxh3-128 of each rank's file, by rank."""


class Generation(_Model):
    """What the set was before a change of the number of GPUs (`hbpack rebalance`)."""

    fingerprint: str
    num_gpus: int
    first_epoch: int
    epochs: tuple[EpochInfo, ...]
    schedules: FileInfo | None = None
    """The file that the rank manifests were made from; None where that is the plan."""


class Origin(_Model):
    """Where a set for another number of GPUs goes on."""

    fingerprint: str
    """Of the generation that was left, one of `history`."""
    epoch: int
    step: int
    """The first step that it did not run."""
    iteration: int
    """The first iteration that it did not run, as it numbered them."""


class Manifest(_Model):
    """A packed data set."""

    model_config = ConfigDict(json_schema_extra=describe_signature)

    format: Literal["hbpack"] = "hbpack"
    format_version: int = FORMAT_VERSION
    hbpack_version: str
    fingerprint: str
    """Of the tokens, the plan, the shard size and each change of the number of GPUs, and of no names: equal
    fingerprints mean equal bytes of the shards and rank manifests."""
    seed: int
    num_gpus: int
    groups: tuple[GroupInfo, ...]
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
    counts: dict[str, int]
    """What became of the records."""
    metrics: dict[str, Any]
    """`overall`, `groups` and `baseline`, as `hbpack stats --json` gives them."""
    config: dict[str, Any]
    """Options that decided the bytes."""
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
    def planned_fingerprint(self) -> str:
        """Of the tokens, the plan and the shard size, and so of the shards."""
        return self.history[0].fingerprint if self.history else self.fingerprint


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write `hbpack.json` atomically, with its checksum."""
    with atomic_file(folder / MANIFEST_NAME) as file:
        file.write(sign_json(manifest.model_dump(mode="json")))


def read_manifest(folder: Path) -> Manifest:
    """Read and validate `hbpack.json`.

    Raises:
        InputError: the folder holds no finished packed data set.
        FormatError: the manifest is damaged, or of another version.
    """
    try:
        data = (folder / MANIFEST_NAME).read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        raise InputError(f"{str(folder)!r} holds no packed data set (no {MANIFEST_NAME}); run hbpack pack") from None
    except OSError as error:
        raise _damaged(str(folder / MANIFEST_NAME), error) from None
    return parse_manifest(data, str(folder / MANIFEST_NAME))


def parse_manifest(data: bytes, name: str) -> Manifest:
    """Validate the bytes of `hbpack.json`, wherever they were read.

    Args:
        name: for messages.

    Raises:
        FormatError: they are damaged, or of another version.
    """
    try:
        _check_version(name, data)
        return Manifest.model_validate_json(check_json(data))
    except ValueError as error:  # A ValidationError is one.
        raise _damaged(name, error) from None


def _check_version(name: str, data: bytes) -> None:
    """Before the checksum, which another version may have elsewhere, or not at all."""
    try:
        version = json.loads(data)["format_version"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return
    if version != FORMAT_VERSION:
        raise FormatError(f"{name!r} has format version {version}, this release reads {FORMAT_VERSION}")


def _damaged(name: str, error: Exception) -> FormatError:
    return FormatError(f"{name!r} is damaged ({describe(error)}); run hbpack write, which rewrites it")


def describe(error: Exception) -> str:
    """What is wrong, in one line; of a model, where and what first.

    >>> try:
    ...     FileInfo(path="../a", num_bytes=1, xxh3="0" * 32)
    ... except ValidationError as error:
    ...     describe(error)
    "path: '../a' is not a path inside the set's folder"
    """
    if not isinstance(error, ValidationError):
        return " ".join((getattr(error, "strerror", None) or str(error)).split())
    first = error.errors()[0]
    place = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in first["loc"]).lstrip(".")
    return f"{place or 'it'}: {first['msg'].removeprefix('Value error, ')}"


def find_epoch(generation: Generation, epoch: int, name: str = "--epoch") -> tuple[EpochInfo, bool]:
    """The written epoch that an epoch is or repeats, and whether it is that one.

    Raises:
        ConfigError: see `epochs.find_epoch`.
    """
    first_steps = [entry.first_step for entry in generation.epochs]
    number, is_written = epochs.find_epoch(epoch, generation.first_epoch, first_steps, generation.num_gpus, name)
    return generation.epochs[number], is_written
