"""A profile: iteration times and memory measured on GPUs, and the models fitted to them."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

Scalar = int | float | str | bool | None
"""A JSON value without parts."""


class _Model(BaseModel):
    model_config = ConfigDict(
        frozen=True, extra="forbid", use_attribute_docstrings=True, defer_build=True, allow_inf_nan=False
    )


class IterationRow(_Model):
    """The measurement of one setting: row length, SP degree, checkpointed layers."""

    length: int = Field(ge=1)
    """Tokens of the row that one SP group shares."""
    sp_size: int = Field(default=1, ge=1)
    """GPUs of the SP group."""
    checkpoint_layers: int = Field(default=0, ge=0)
    """Layers that recompute their activations."""
    seconds: float | None = Field(default=None, gt=0)
    """Median time of forward and backward; None if it did not fit."""
    tokens: int = Field(ge=1)
    """Tokens that all GPUs together ran in these seconds; settings are compared by seconds per token."""
    work: int | None = Field(default=None, ge=1)
    """Attention work of one row, sum of s^2; None for a row of one sample, length^2."""
    memory_bytes: int | None = Field(default=None, ge=0)
    """Peak memory of a GPU; None if not measured."""
    out_of_memory: bool = False
    """Whether the setting ran out of memory."""


class PieceRow(_Model):
    """A measurement of the attention kernel, for the choice of context-parallel sharding."""

    queries: int = Field(ge=1)
    """Tokens of the piece: a run of a sample's tokens."""
    keys: int = Field(ge=1)
    """Tokens of the sample up to the last query; at least as many."""
    seconds: float = Field(gt=0)
    """Median of one layer's forward and backward pass under a causal mask, in a row of equal pieces, per piece."""

    @model_validator(mode="after")
    def _check_keys(self) -> PieceRow:
        if self.keys < self.queries:
            raise ValueError(f"a piece has at least as many keys as queries, got {self.keys} and {self.queries}")
        return self


class Fit(_Model):
    """Coefficients of a model with their standard errors."""

    coefficients: dict[str, float]
    """Named as in `CostModel` or `MemoryModel`; those of `send` are named `send.DEGREE`."""
    errors: dict[str, float]
    """Standard errors of the fitted coefficients; given or assumed ones have none."""
    mean_error: float = Field(ge=0)
    """Mean of |predicted - measured| / measured over the rows."""


class Profile(_Model):
    """Written by `hbpack profile`; read by `--profile`."""

    format_version: Literal[1] = 1
    model: dict[str, Scalar]
    """The model's shape; `num_layers` and `num_heads` at least."""
    gpu: str
    """The GPU's name."""
    num_gpus: int = Field(ge=1)
    """GPUs that share the weights when training."""
    num_measured: int | None = Field(default=None, ge=1)
    """GPUs that ran the rows, if not `num_gpus`; a row's `tokens` are those of these GPUs."""
    memory_limit: int | None = Field(default=None, ge=1)
    """Bytes of a GPU that training may take."""
    iterations: tuple[IterationRow, ...]
    pieces: tuple[PieceRow, ...] = ()
    """The attention kernel alone."""
    cost: Fit | None = None
    memory: Fit | None = None
    assumed: dict[str, Scalar] = {}
    """Values that were not measured, such as given bandwidths."""
    library_versions: dict[str, str] = {}

    @property
    def num_layers(self) -> int:
        """Number of the model's layers."""
        found = self.model["num_layers"]
        assert type(found) is int  # `fit_profile` has checked it.
        return found
