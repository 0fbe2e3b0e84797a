"""What a page shows, as the stage gathers it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer_cli.compare import Comparison
from packer_cli.compare.savings import PlanSimulation
from packer_cli.config import PlanConfig
from packer_cli.format.metrics import PlanMetrics, SampleCounts
from packer_cli.plan.core.types import Int32Array, Plan
from packer_cli.plan.figures import Baseline
from packer_cli.plan.strategies.protocol import PlanRequest
from packer_cli.simulate.figures import Simulator


@dataclass(frozen=True, kw_only=True)
class Sources:
    """Where the samples come from."""

    names: tuple[str, ...]
    of_sample: NDArray[np.integer] | None
    """int[n]; None: it is not known."""


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """The predicted epoch of the plan, and what predicts it."""

    simulator: Simulator
    result: PlanSimulation


@dataclass(frozen=True, kw_only=True)
class PlanFacts:
    """A plan and what it comes to."""

    plan: Plan
    config: PlanConfig
    request: PlanRequest
    counts: SampleCounts
    metrics: PlanMetrics
    baseline: Baseline
    prediction: Prediction | None
    """None: no model is known."""
    comparison: Comparison | None
    """The plan beside other strategies and balances; its own row is the first. None: not compared."""
    why_not: str = ""
    """Why it is not compared, for people."""


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What a page is about."""

    name: str
    """Of the input, as the user gave it."""
    lengths: Int32Array
    """int32[n]: of all samples or, of a plan, of its pieces."""
    sources: Sources
    values: dict[str, Any]
    """As `hbpack stats --json` prints them."""
    planned: PlanFacts | None
    """None: only lengths are known."""
    made_from: tuple[tuple[str, str], ...] = ()
    """Facts about the set for the end of the page: name and value."""
