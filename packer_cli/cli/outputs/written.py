"""The records of what other commands write: config files, token stores, manifests for other GPUs, exports."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from packer_cli.cli.outputs.base import Output
from packer_cli.format.metrics import OverallMetrics


@dataclass(frozen=True, kw_only=True)
class InitOutput(Output):
    """`hbpack init`."""

    output: str
    """The config file, as it was named."""
    options: dict[str, Any]
    """What stands in it, besides `inputs`."""
    missing: tuple[str, ...]
    """Options that stand in it as comments, for you to set."""
    lost: tuple[str, ...]
    """What of another trainer's config could not be carried over."""
    trainer_lines: tuple[str, ...]
    """Lines for another trainer's config, so that it trains the packed set."""


@dataclass(frozen=True, kw_only=True)
class StoreOutput(Output):
    """`hbpack tokenize`."""

    output: str
    """The folder, as it was named; the store is its `tokens`."""
    is_complete: bool
    """False after a task of a job array whose others are not done."""
    num_samples: int
    num_tokens: int
    num_loss_tokens: int
    num_rejected: int
    num_without_loss: int
    """Those of the rejected in which no token carries a loss."""
    num_parts: int
    """Files of the store."""


@dataclass(frozen=True, kw_only=True)
class RebalanceOutput(Output):
    """`hbpack rebalance`."""

    output: str
    num_gpus: int
    first_epoch: int
    first_step: int
    """Where training goes on."""
    num_iterations: int
    """Left in the first epoch, as are the steps."""
    num_steps: int
    overall: OverallMetrics
    """Of whole epochs from now on."""


@dataclass(frozen=True, kw_only=True)
class ExportOutput(Output):
    """`hbpack export`."""

    output: str | None = None
    """None for a packed set that was pushed to the Hub as it is."""
    format: str | None = None
    """None likewise."""
    pushed_to: str | None = None
    """The data set on the Hub, `USER/NAME`."""
    is_complete: bool
    """False after a task of a job array whose others are not done; the numbers are of a complete export."""
    num_rows: int | None = None
    """Packs."""
    num_samples: int | None = None
    num_tokens: int | None = None
    num_files: int | None = None
    num_bytes: int | None = None
