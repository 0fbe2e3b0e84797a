"""Options of single commands that decide no plan and no bytes."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from packer_cli.config.fields import Model


class WorkersConfig(Model):
    """Where work runs."""

    workers: int | None = Field(default=None, ge=1, le=4096)
    """Worker processes; by default, as many as there are CPUs. The result is the same for any number."""


class BoundConfig(Model):
    """How bounds are proved."""

    bound: Literal["l2", "lp"] = "l2"
    """Proof of the least number of packs: `l2` uses sizes alone (Martello and Toth's L2); `lp` also solves the linear
    program of cutting stock where a plan has more packs than that, which takes up to 60 seconds for each group of each
    plan."""


class TrainConfig(Model):
    """How a plan is trained, beyond what the plan says."""

    pad_to: Literal["multiple", "row", "capacity"] = "multiple"
    """What the loader pads rows to."""
    step_seconds: float = Field(default=0.0, ge=0, le=86_400, allow_inf_nan=False)
    """Fixed seconds of each optimizer step: gradient sync and optimizer."""
