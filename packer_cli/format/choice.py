"""How `--groups auto` chose: the record that `plan.arrow` and `hbpack.json` keep of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from packer_cli.format.records import FOR_SCHEMA


@dataclass(frozen=True, kw_only=True)
class AlternativeGroups:
    """Groups that the choice was compared with."""

    __pydantic_config__: ClassVar[dict[str, Any]] = FOR_SCHEMA

    name: str
    groups: str
    """As `--groups` takes them."""
    seconds: float
    """Predicted epoch time."""
    gain: float
    """How much longer than the choice's, as a share of it."""


@dataclass(frozen=True, kw_only=True)
class GroupChoice:
    """The chosen groups, what they were chosen for, and what they were compared with."""

    __pydantic_config__: ClassVar[dict[str, Any]] = FOR_SCHEMA

    groups: str
    """As `--groups` takes them."""
    algorithm: str
    max_groups: int
    max_length: int | None
    gpus: int
    samples: int
    tokens: int
    longest: int
    """Tokens of the longest sample."""
    seconds: float | None
    """Predicted epoch time; None without a model."""
    gpu_hours: float | None
    notes: tuple[str, ...]
    """For people."""
    alternatives: tuple[AlternativeGroups, ...]
    predicted_with: dict[str, Any]
    """The source of the predictions, see `GpuModel.origin`."""
    fingerprint: str
    """Covers every number that the choice depends on."""
