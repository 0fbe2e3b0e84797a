"""`hbpack.json`: the manifest of a packed data set. Its JSON Schema is `schemas/manifest.schema.json`."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from packer_cli.errors import ConfigError, FormatError, InputError

MANIFEST_NAME = "hbpack.json"
FORMAT_VERSION = 1


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class ShardInfo(_Model):
    """One shard file."""

    path: str
    """Relative to the folder of the manifest."""
    first_pack: int
    """Id of its first pack; row r holds pack `first_pack + r`."""
    num_packs: int
    num_bytes: int
    xxh3: str
    """xxh3-128 of the file."""


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

    path: str
    num_iterations: int
    """In these files, which number them from 0."""
    num_steps: int
    """In these files, which number them from 0."""
    first_step: int = 0
    """Steps of the epoch that came before these, on another number of GPUs."""


class Generation(_Model):
    """What the set was before a change of the number of GPUs (`hbpack rebalance`)."""

    fingerprint: str
    num_gpus: int
    first_epoch: int
    epochs: tuple[EpochInfo, ...]


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
            fingerprint=self.fingerprint, num_gpus=self.num_gpus, first_epoch=self.first_epoch, epochs=self.epochs
        )

    @property
    def planned_fingerprint(self) -> str:
        """Of the tokens, the plan and the shard size, and so of the shards."""
        return self.history[0].fingerprint if self.history else self.fingerprint


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
        manifest = Manifest.model_validate_json(data)
    except ValidationError as error:
        raise _damaged(name, error) from None
    if manifest.format_version != FORMAT_VERSION:
        raise FormatError(
            f"{name!r} has format version {manifest.format_version}, this release reads {FORMAT_VERSION}"
        )
    return manifest


def _damaged(name: str, error: Exception) -> FormatError:
    return FormatError(f"{name!r} is damaged ({str(error).splitlines()[0]}); run hbpack pack again")


def find_epoch(manifest: Manifest, epoch: int) -> tuple[EpochInfo, bool]:
    """The written epoch that an epoch is or repeats, and whether it is that.

    Raises:
        ConfigError: the epoch was over when the set was dealt to other GPUs, or there is no whole one to repeat.
    """
    if epoch < manifest.first_epoch:
        raise ConfigError(
            f"--epoch must be at least {manifest.first_epoch}, got {epoch}: it was over when the set was dealt to "
            f"{manifest.num_gpus} GPUs"
        )
    if epoch - manifest.first_epoch < len(manifest.epochs):
        return manifest.epochs[epoch - manifest.first_epoch], True
    for entry in manifest.epochs:
        if not entry.first_step:
            return entry, False
    raise ConfigError(f"--epoch {epoch} would repeat a whole epoch, and this set holds none; choose one that it holds")
