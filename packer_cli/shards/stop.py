"""Where a run on a packed set stopped: the loader's state, as `hbpack rebalance` reads it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from packer_cli.errors import InputError
from packer_cli.format.state import parse_state


@dataclass(frozen=True, kw_only=True)
class Stop:
    """Where a run stopped."""

    name: str
    """What said so, for messages."""
    fingerprint: str | None = None
    """Generation that it read; None: the one in force."""
    epoch: int | None = None
    """None: the first of the generation."""
    step: int | None = None
    """First step, counted through the epoch, that was not run; None: the first of the generation."""
    iteration: int | None = None
    """First iteration that was not run; None: that with which the step begins."""


def read_state(path: Path) -> Stop:
    """Read the state of a loader (`PackedDataset.state_dict`), saved as JSON.

    Raises:
        InputError: the file cannot be read, or is no such state.
    """
    name = f"--state {str(path)!r}"
    try:
        value = json.loads(path.read_bytes())
    except OSError as error:
        raise InputError(f"{name} cannot be read: {error.strerror}; name a file that holds ds.state_dict()") from None
    except ValueError as error:
        raise InputError(f"{name} is not JSON ({error}); save ds.state_dict() with json.dump") from None
    try:
        state = parse_state(value, name)
    except ValueError as error:
        raise InputError(str(error)) from None
    return Stop(name=name, **asdict(state))
