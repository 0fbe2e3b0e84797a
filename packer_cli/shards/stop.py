"""Where a run on a packed set stopped: the loader's state, as `hbpack rebalance` reads it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from packer_cli.errors import InputError
from packer_cli.format.constants import STATE_VERSION
from packer_cli.format.epochs import MAX_EPOCH


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
    try:
        state = json.loads(path.read_bytes())
    except OSError as error:
        raise InputError(f"--state {str(path)!r} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise InputError(f"--state {str(path)!r} is not JSON ({error}); save ds.state_dict() with json.dump") from None
    numbers = ("epoch", "step", "iteration")
    if (
        not isinstance(state, dict)
        or not isinstance(state.get("fingerprint"), str)
        or any(type(state.get(key)) is not int or state[key] < 0 for key in numbers)
    ):
        raise InputError(
            f"--state {str(path)!r} is not a state of a PackedDataset, which has fingerprint, epoch, step and "
            "iteration; save ds.state_dict() with json.dump"
        )
    if state.get("version") != STATE_VERSION:
        raise InputError(
            f"--state {str(path)!r} has version {state.get('version')!r}, this release reads {STATE_VERSION}; use the "
            "release that saved it"
        )
    if state["epoch"] > MAX_EPOCH:
        raise InputError(
            f"--state {str(path)!r} is of epoch {state['epoch']}, and the last is {MAX_EPOCH}; it was changed, use "
            "another one"
        )
    return Stop(name=f"--state {str(path)!r}", **{key: state[key] for key in ("fingerprint", *numbers)})
