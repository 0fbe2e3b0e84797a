"""Checks whether a state fits the set that a loader reads. See `format/state.py`."""

from __future__ import annotations

from typing import Any

from packer_cli.errors import FormatError
from packer_cli.format.entries import Generation, Origin
from packer_cli.format.manifest import Manifest
from packer_cli.format.state import LoaderState, parse_state


def read_state(state: Any, manifest: Manifest, name: str) -> tuple[int, int, bool]:
    """(epoch, iteration, whether that is the end of the epoch) of a state.

    Args:
        name: of the packed set, for messages.

    Raises:
        FormatError: the state is of another packed set or version, or damaged.
    """
    try:
        found = parse_state(state, "the loader state")
    except ValueError as error:
        raise FormatError(str(error)) from None
    if found.fingerprint != manifest.fingerprint:
        raise _of_another_set(found, manifest, name)
    epoch, iteration = found.epoch, found.iteration
    num_iterations = manifest.generation.find_epoch(epoch)[0].num_iterations
    if iteration > num_iterations:
        raise FormatError(
            f"the loader state is at iteration {iteration} of epoch {epoch}, which has {num_iterations}: "
            "it was changed, or is of another packed set"
        )
    return epoch, iteration, iteration == num_iterations


def _of_another_set(state: LoaderState, manifest: Manifest, name: str) -> FormatError:
    begin = f"the loader state is of the packed set {state.fingerprint}, but {name} is {manifest.fingerprint}"
    origin = manifest.origin
    before = {entry.fingerprint: entry for entry in manifest.history}.get(state.fingerprint)
    if before is None or origin is None:
        return FormatError(f"{begin}: resume with the set with which the run began, or start over")
    begin += f", rebalanced from {before.num_gpus} to {manifest.num_gpus} GPUs"
    # Do not convert the state silently: a StatefulDataLoader would keep the old position with a new epoch.
    if state.fingerprint == origin.fingerprint and _is_at(state, origin, before):
        return FormatError(
            f"{begin} at exactly the place of this state: do not load it, since a new PackedDataset begins there "
            f"(epoch {origin.epoch}, step {origin.step})"
        )
    return FormatError(
        f"{begin} at another place (epoch {origin.epoch}, step {origin.step}): save this state as JSON, run "
        f"hbpack rebalance --gpus {manifest.num_gpus} --state FILE, and then do not load a state"
    )


def _is_at(state: LoaderState, origin: Origin, before: Generation) -> bool:
    """Whether a state is where the set was rebalanced; the end of an epoch equals the start of the next."""
    place = (state.epoch, state.iteration)
    if origin.iteration == 0 and place[0] == origin.epoch - 1 and place[0] >= before.first_epoch:
        return place[1] == before.find_epoch(place[0])[0].num_iterations
    return place == (origin.epoch, origin.iteration)
