"""Abilities of trainers, and those that a plan asks for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from packer_cli.errors import did_you_mean
from packer_cli.format.layout import DEGREES

if TYPE_CHECKING:
    from packer_cli.plan.strategies.protocol import PlanRequest

ABILITIES: Mapping[str, str] = {
    "fsdp": "gather weights in every micro-batch, in which all GPUs meet (FSDP, ZeRO-3)",
    "zero-1": "keep its weights on each replica, and run as many micro-batches there as it has (DDP, ZeRO-1)",
    "sp": "share rows by sequence parallelism (Ulysses)",
    "cp": "share rows by context parallelism",
    "tp": "run tensor parallelism",
    "pp": "run pipelines",
    "degrees": "change the degrees from one iteration to the next",
    "unlike-degrees": "run replicas of unlike degrees side by side",
}
"""Differences between trainers, each worded to follow "can"."""

_LOADER = frozenset({"fsdp", "sp", "degrees"})
TRAINERS: Mapping[str, frozenset[str]] = {
    "pytorch": _LOADER | {"zero-1", "cp", "unlike-degrees"},
    "transformers": _LOADER,
    "trl": _LOADER,
    "axolotl": _LOADER,
    "accelerate": _LOADER,
    "lightning": _LOADER,
    "torchtitan": frozenset({"fsdp", "cp"}),
    "megatron": frozenset({"zero-1", "cp", "tp", "pp"}),
    "any": frozenset(ABILITIES),
}
"""Abilities of each trainer with hbpack's sets, see docs/trainers.md."""
USUAL = "transformers"
"""The trainer that is assumed where none is named: it can do no more than any of hbpack's loops."""


def read_trainer(value: str) -> str:
    """Check `NAME|ABILITY[,...]`, and return it.

    Raises:
        ValueError: a word is neither a name nor an ability.
    """
    known = (*TRAINERS, *ABILITIES)
    for word in value.split(","):
        if word not in known:
            raise ValueError(
                f"{word!r} is no trainer and nothing that one can do{did_you_mean(word, known)}; choose of "
                f"{', '.join(TRAINERS)}, and of {', '.join(ABILITIES)}"
            )
    return value


def abilities(trainer: str | None) -> frozenset[str]:
    """Return the abilities that `--trainer` names."""
    words = (trainer or USUAL).split(",")
    return frozenset().union(*(TRAINERS.get(word, {word}) for word in words))


def asked_of_trainer(request: PlanRequest) -> frozenset[str]:
    """Find the abilities without which a trainer cannot run a plan."""
    layouts = {group.layout._replace(vpp=1) for group in request.groups}
    found = {name for name in DEGREES if any(getattr(layout, name) > 1 for layout in layouts)}
    keeps_weights = request.lockstep == 1 or {"tp", "pp"} & found
    found.add("zero-1" if keeps_weights else "fsdp")
    if len(layouts) > 1:
        found.add("unlike-degrees" if request.strategy.mixes_layouts and request.strategy.mixes_within else "degrees")
    return frozenset(found)
