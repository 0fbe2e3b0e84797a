"""The state of a loader: where a run goes on. Small, the same on every rank, and bound to its set by a fingerprint.

The position is an iteration, not a step, so that a run may stop anywhere; the step beside it is what
`hbpack rebalance` and people read.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any

from packer_cli.format.constants import STATE_VERSION
from packer_cli.format.epochs import MAX_EPOCH

_NUMBERS = ("epoch", "iteration", "step")


@dataclass(frozen=True, kw_only=True)
class LoaderState:
    """What `PackedDataset.state_dict` gives and `hbpack rebalance` reads, but for the version."""

    fingerprint: str
    """Of the set, or of its generation."""
    epoch: int
    iteration: int
    """The first that was not used."""
    step: int
    """Of that iteration, counted through the epoch."""

    def value(self) -> dict[str, Any]:
        """JSON values."""
        return {"version": STATE_VERSION, **asdict(self)}


def parse_state(value: Any, name: str) -> LoaderState:
    """The state of JSON values.

    Args:
        name: for messages.

    Raises:
        ValueError: it is no state, or one of another version, or it was changed.
    """
    if not isinstance(value, dict) or "version" not in value:
        raise ValueError(f"{name} is not what state_dict() of a PackedDataset gives; save that, in a file as JSON")
    version = value["version"]
    if version != STATE_VERSION:
        raise ValueError(
            f"{name} has version {version!r}; this release reads version {STATE_VERSION}; resume with the release "
            "that saved it, or start from the first step of a set that you pack again"
        )
    known: dict[str, Any] = {item.name: value.get(item.name) for item in fields(LoaderState)}
    wrong = [] if isinstance(known["fingerprint"], str) else ["fingerprint"]
    wrong += [key for key in _NUMBERS if type(known[key]) is not int or known[key] < 0]
    if wrong:
        raise ValueError(f"{name} has no valid {', '.join(wrong)}; it was changed, use another one")
    state = LoaderState(**known)
    if state.epoch > MAX_EPOCH:
        raise ValueError(
            f"{name} is of epoch {state.epoch}, and the last is {MAX_EPOCH}; it was changed, use another one"
        )
    return state
