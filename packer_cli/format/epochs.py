"""The order of epochs that were not written: whole steps of a written one, in another order.

The loader reads them so, and a change of the number of GPUs must know what it has read: one definition for both.

The state of a loader: where a run goes on. Small, the same on every rank, and bound to its set by a fingerprint.
The position is an iteration, not a step, so that a run may stop anywhere; the step beside it is what
`hbpack rebalance` and people read.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any

from packer_cli.errors import FormatError
from packer_cli.format.constants import STATE_VERSION

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

MAX_EPOCH = 2**31 - 1
"""The greatest number of an epoch; the one after it still fits the 32 bits that a stream has for it."""

# Keeps this random stream apart from those of the plan, which has the same seed.
_STREAM = 0x4C4F_4144 << 32


def repeat_order(seed: int, epoch: int, num_steps: int) -> NDArray[np.int64]:
    """Order the steps (int64[s]) of the repeated epoch as `epoch` runs them: a seeded permutation.

    >>> repeat_order(0, 1, 4).tolist() == repeat_order(0, 2, 4).tolist()
    False
    """
    import numpy as np

    key = np.array([seed % 2**64, _STREAM | epoch], dtype=np.uint64)
    return np.random.Generator(np.random.Philox(key=key)).permutation(num_steps)


def repeat_iterations(seed: int, epoch: int, step: NDArray[np.integer]) -> NDArray[np.int64]:
    """Order the iterations (int64[i]) of the repeated epoch as `epoch` runs them.

    The iterations of a step stay together, and in order.

    Args:
        step: int[i], the step of each iteration of the repeated epoch: 0 .. s-1, rising.

    >>> import numpy as np
    >>> repeat_iterations(0, 1, np.array([0, 0, 1, 1])).tolist() in ([0, 1, 2, 3], [2, 3, 0, 1])
    True
    """
    import numpy as np

    num_steps = int(step[-1]) + 1 if len(step) else 0
    order = repeat_order(seed, epoch, num_steps)
    first = np.searchsorted(step, np.arange(num_steps + 1))
    sizes = np.diff(first)[order]
    return np.repeat(first[order] - (np.cumsum(sizes) - sizes), sizes) + np.arange(len(step))


StateDict = dict[str, Any]
"""A state as torch and trainers save and load it."""


@dataclass(frozen=True, kw_only=True)
class LoaderState:
    """The state that `PackedDataset.state_dict` gives and `hbpack rebalance` reads, without its version."""

    fingerprint: str
    """Fingerprint of the set, or of its generation."""
    planned_fingerprint: str
    """Fingerprint of the set as it was planned, which names the folder of its version."""
    epoch: int
    iteration: int
    """The first iteration that was not used."""
    step: int
    """Step of that iteration, counted through the epoch."""

    def value(self) -> StateDict:
        """Return JSON values."""
        return {"version": STATE_VERSION, **asdict(self)}


TRAINER_CALLBACK = "PackedDataState"
"""The name under which transformers' Trainer keeps the state among its callbacks, in `trainer_state.json`."""


def attributes_of_trainer(value: Any) -> StateDict | None:
    """Find the attributes that the callback saved in JSON values of the Trainer's state, with the loader's state as
    "data"; None if there are none."""
    try:
        saved = value["stateful_callbacks"][TRAINER_CALLBACK]
        attributes = (saved[0] if isinstance(saved, list) else saved)["attributes"]
    except (KeyError, IndexError, TypeError):
        return None
    return attributes if isinstance(attributes, dict) else None


def state_of_trainer(value: Any) -> Any:
    """Take the loader's state out of JSON values of the Trainer's, None if it has none; return other values as they
    are."""
    if not isinstance(value, dict) or "stateful_callbacks" not in value:
        return value
    return (attributes_of_trainer(value) or {}).get("data")


def parse_state(value: Any, name: str) -> LoaderState:
    """Read the state of JSON values.

    Args:
        name: for messages.

    Raises:
        FormatError: it is no state, or one of another version, or it was changed.
    """
    if not isinstance(value, dict) or "version" not in value:
        raise FormatError(f"{name} is not what state_dict() of a PackedDataset gives; save that, in a file as JSON")
    version = value["version"]
    if version != STATE_VERSION:
        raise FormatError(
            f"{name} has version {version!r}; this release reads version {STATE_VERSION}; resume with the release "
            "that saved it, or start from the first step of a set that you pack again"
        )
    known: dict[str, Any] = {item.name: value.get(item.name) for item in fields(LoaderState)}
    wrong = [key for key in ("fingerprint", "planned_fingerprint") if not isinstance(known[key], str)]
    wrong += [key for key in ("epoch", "iteration", "step") if type(known[key]) is not int or known[key] < 0]
    if wrong:
        raise FormatError(f"{name} has no valid {', '.join(wrong)}; it was changed, use another one")
    state = LoaderState(**known)
    if state.epoch > MAX_EPOCH:
        raise FormatError(
            f"{name} is of epoch {state.epoch}, and the last is {MAX_EPOCH}; it was changed, use another one"
        )
    return state
