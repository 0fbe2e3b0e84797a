"""The profile file: iteration times and memory that were measured on GPUs, and what was fitted to them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from packer_cli.errors import InputError


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)


class IterationRow(_Model):
    """One setting: rows of a length on groups of an SP degree, with some layers checkpointed."""

    length: int = Field(ge=1)
    """Tokens of the row that one SP group shares."""
    sp_size: int = Field(default=1, ge=1)
    """GPUs of the group."""
    checkpoint_layers: int = Field(default=0, ge=0)
    """Layers that recompute their activations."""
    seconds: float | None = Field(default=None, gt=0)
    """Median of forward and backward; None where it did not fit."""
    tokens: int = Field(ge=1)
    """Tokens that all GPUs together ran in these seconds; settings are compared by seconds a token."""
    work: int | None = Field(default=None, ge=1)
    """Attention work of one row, sum of s^2; None where it is one sample, length^2."""
    memory_bytes: int | None = Field(default=None, ge=0)
    """Peak of a GPU; None where it was not measured."""
    out_of_memory: bool = False
    """Whether it did not fit."""


class AttentionRow(_Model):
    """The attention kernel alone, for the choice of context-parallel sharding."""

    query_length: int = Field(ge=1)
    """Tokens of a stretch of queries."""
    key_length: int = Field(ge=1)
    """Tokens that they attend to."""
    seconds: float = Field(gt=0)
    """Median of one layer's forward pass."""


class Fit(_Model):
    """Coefficients of a model with their standard errors."""

    coefficients: dict[str, float]
    """By the names of `CostModel` or `MemoryModel`; of `send`, by `send.DEGREE`."""
    errors: dict[str, float]
    """Standard error of each that was fitted; what was given or assumed has none."""
    mean_error: float = Field(ge=0)
    """Mean of |predicted - measured| / measured over the rows."""


class Profile(_Model):
    """Written by `hbpack profile`; read by `--profile`."""

    format_version: Literal[1] = 1
    model: dict[str, Any]
    """The model's shape; `num_layers` and `num_heads` at least."""
    gpu: str
    """The GPU's name."""
    num_gpus: int = Field(ge=1)
    """GPUs that share the weights when training."""
    num_measured: int | None = Field(default=None, ge=1)
    """GPUs that ran the rows, where they were not `num_gpus`; a row's tokens are theirs."""
    memory_limit: int | None = Field(default=None, ge=1)
    """Bytes of a GPU that training may take."""
    iterations: tuple[IterationRow, ...]
    attention: tuple[AttentionRow, ...] = ()
    cost: Fit | None = None
    memory: Fit | None = None
    assumed: dict[str, Any] = {}
    """What was not measured: bandwidths given, for example."""
    library_versions: dict[str, str] = {}


def read_profile(path: Path) -> Profile:
    """Read and validate.

    Raises:
        InputError: there is no such file, or it is not a profile; the message names the first field that is wrong.
    """
    try:
        return Profile.model_validate_json(path.read_bytes())
    except OSError as error:
        raise InputError(f"{str(path)!r}: {error.strerror}; make a profile with hbpack profile") from None
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise InputError(
            f"{str(path)!r} is not a profile: {place or 'the file'}: {first['msg']}; make one with hbpack profile"
        ) from None
