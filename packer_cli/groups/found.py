"""What `hbpack groups` finds: the record of the choice, and the candidates that it was made from."""

from __future__ import annotations

from dataclasses import dataclass

from packer_cli.format.metrics import GroupChoice
from packer_cli.groups.choice import Choice
from packer_cli.groups.settings import Setting, best_settings


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A length and an SP degree that were tried."""

    length: int
    sp_size: int
    checkpoint_layers: int
    seconds: float | None
    """An iteration; None if it does not fit."""
    seconds_per_token: float | None
    memory_bytes: float | None
    """Of a GPU; None if it was not measured."""
    fits: bool
    measured: bool
    """Whether the figures are measured, and not predicted."""
    mark: str
    """`best`, `best of its length`, `chosen`, `best, chosen` and so on, or empty."""


@dataclass(frozen=True, kw_only=True)
class FoundGroups(GroupChoice):
    """The choice, with what it was made from."""

    candidates: tuple[Candidate, ...]


def found_groups(choice: Choice, record: GroupChoice) -> FoundGroups:
    """The record of a choice with its candidates: one per length and SP degree, by length."""
    best = best_settings(choice.settings)
    fastest = min(best.values(), key=lambda setting: setting.speed)

    def candidate(setting: Setting) -> Candidate:
        group = setting.group
        is_best = setting is best.get(group.capacity)
        marks = ["best" if setting is fastest else "best of its length"] if is_best else []
        return Candidate(
            length=group.capacity,
            sp_size=group.sp_size,
            checkpoint_layers=group.checkpoint_layers,
            seconds=setting.seconds,
            seconds_per_token=setting.seconds_per_token,
            memory_bytes=setting.memory_bytes,
            fits=setting.seconds is not None,
            measured=setting.is_measured,
            mark=", ".join([*marks, "chosen"] if group in choice.groups else marks),
        )

    settings = [setting for length in sorted(choice.settings) for setting in choice.settings[length]]
    return FoundGroups(**vars(record), candidates=tuple(map(candidate, settings)))
