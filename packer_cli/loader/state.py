"""The state of a data set: where a run goes on. Small, the same on every rank, and bound to the set by a fingerprint.

The position is an iteration, not a step, so that a run may stop anywhere; the step beside it is what
`hbpack rebalance` and people read.
"""

from __future__ import annotations

from typing import Any

from packer_cli.errors import FormatError
from packer_cli.format.constants import STATE_VERSION
from packer_cli.format.epochs import MAX_EPOCH
from packer_cli.loader.manifest import find_epoch

_NUMBERS = ("epoch", "iteration", "step")


def make_state(manifest: dict[str, Any], epoch: int, iteration: int, step: int) -> dict[str, Any]:
    """JSON values: version, fingerprint, epoch, iteration, step."""
    return {
        "version": STATE_VERSION,
        "fingerprint": manifest["fingerprint"],
        "epoch": epoch,
        "iteration": iteration,
        "step": step,
    }


def read_state(state: Any, manifest: dict[str, Any], name: str) -> tuple[int, int, bool]:
    """(epoch, iteration, whether that is the end of the epoch) of a state.

    Args:
        name: of the packed set, for messages.

    Raises:
        FormatError: it is of another packed set, of another version, or damaged.
    """
    if not isinstance(state, dict) or "version" not in state:
        raise FormatError("the loader state is not one that a PackedDataset gave: save ds.state_dict(), and load that")
    if state["version"] != STATE_VERSION:
        raise FormatError(
            f"the loader state has version {state['version']!r}; this release reads version {STATE_VERSION}: "
            "resume with the release that saved it"
        )
    wrong = [key for key in _NUMBERS if type(state.get(key)) is not int or state[key] < 0]
    if not isinstance(state.get("fingerprint"), str):
        wrong.append("fingerprint")
    if wrong:
        raise FormatError(f"the loader state has no {', '.join(wrong)}: it was changed; start from another one")
    if state["epoch"] > MAX_EPOCH:
        raise FormatError(
            f"the loader state is of epoch {state['epoch']}, and the last is {MAX_EPOCH}: it was changed; start from "
            "another one"
        )
    if state.get("fingerprint") != manifest["fingerprint"]:
        raise _of_another_set(state, manifest, name)
    epoch, iteration = state["epoch"], state["iteration"]
    num_iterations = find_epoch(manifest, epoch)[0]["num_iterations"]
    if iteration > num_iterations:
        raise FormatError(
            f"the loader state is at iteration {iteration} of epoch {epoch}, which has {num_iterations}: "
            "it was changed or is of another packed set"
        )
    return epoch, iteration, iteration == num_iterations


def _of_another_set(state: dict[str, Any], manifest: dict[str, Any], name: str) -> FormatError:
    begin = f"the loader state is of the packed set {state.get('fingerprint')} and {name} is {manifest['fingerprint']}"
    origin = manifest.get("origin")
    before = {entry["fingerprint"]: entry for entry in manifest.get("history", ())}.get(state.get("fingerprint"))
    if before is None or origin is None:
        return FormatError(f"{begin}: resume with the set that the run began with, or start over")
    begin += f", rebalanced from {before['num_gpus']} to {manifest['num_gpus']} GPUs"
    # Nothing is mapped in silence: a StatefulDataLoader would keep the old position beside a new epoch.
    if state["fingerprint"] == origin["fingerprint"] and _is_at(state, origin, before):
        return FormatError(
            f"{begin} at the very place of this state: load no state, a new PackedDataset begins there (epoch "
            f"{origin['epoch']}, step {origin['step']})"
        )
    return FormatError(
        f"{begin} at another place (epoch {origin['epoch']}, step {origin['step']}): save this state as JSON, run "
        f"hbpack rebalance --gpus {manifest['num_gpus']} --state FILE, and load no state then"
    )


def _is_at(state: dict[str, Any], origin: dict[str, Any], before: dict[str, Any]) -> bool:
    """Whether a state is where the set was rebalanced; the end of an epoch is the start of the next."""
    place = (state["epoch"], state["iteration"])
    if origin["iteration"] == 0 and place[0] == origin["epoch"] - 1 and place[0] >= before["first_epoch"]:
        return bool(place[1] == find_epoch(before, place[0])[0]["num_iterations"])
    return place == (origin["epoch"], origin["iteration"])
