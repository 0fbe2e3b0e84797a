"""What `hbpack groups` says of the layouts that a strategy would choose from."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class SchemeRow:
    """A kind of pipeline."""

    name: str
    layout: dict[str, int]
    num_gpus: int
    capacity: int
    """Most tokens of a micro-batch."""
    checkpoint_layers: int
    gpu_seconds_short: float
    """GPU-seconds of a million tokens in samples of 1,024 tokens, or the capacity, without waiting."""
    gpu_seconds_long: float
    """The same in samples as long as the capacity."""


@dataclass(frozen=True, kw_only=True)
class LayoutRow:
    """A layout: pipelines that divide all GPUs."""

    pipelines: dict[str, int]
    """Number of each scheme's pipelines."""
    longest: int
    """Longest sample that it holds."""
    fastest: float
    """Share of the steps in which it is the fastest."""
    step_seconds: float | None
    """Mean time of a step, if all used it; None if it does not hold every sample."""


@dataclass(frozen=True, kw_only=True)
class LayoutChoice:
    """The layouts, that which saves most first, and what they save."""

    schemes: tuple[SchemeRow, ...]
    layouts: tuple[LayoutRow, ...]
    step_seconds: float
    """Mean time of a step, each on its fastest layout."""
    num_steps: int
    num_tried: int
    """Steps that the times are means of."""
    num_gpus: int
    global_tokens: int

    def values(self) -> dict[str, Any]:
        """JSON values."""
        return asdict(self)
