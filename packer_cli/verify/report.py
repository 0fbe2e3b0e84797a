"""What a verification found."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from packer_cli.format.records import in_json


@dataclass(frozen=True, kw_only=True)
class Damage:
    """Something that is not as it was written."""

    file: str
    """Path in the set's folder; a folder where no file alone is to blame."""
    what: str
    repair: str
    """The command that repairs it."""


@dataclass(kw_only=True)
class Report:
    """All that was found."""

    damaged: list[Damage] = field(default_factory=list)
    not_checked: list[str] = field(default_factory=list)
    """What could not be looked at, and why; no damage by itself."""
    repaired: list[Damage] = field(default_factory=list)
    """What was damaged before the set was repaired."""
    checked: dict[str, int] = field(default_factory=dict)
    """How many of what were found sound."""

    @property
    @in_json
    def sound(self) -> bool:
        """Whether nothing is damaged."""
        return not self.damaged

    def is_damaged(self, file: str) -> bool:
        """Whether damage was found in a file."""
        return any(damage.file == file for damage in self.damaged)

    def add(self, found: Mapping[str, str], repair: str) -> None:
        """Add what is wrong, by file."""
        self.damaged += [Damage(file=file, what=what, repair=repair) for file, what in found.items()]


def without_remedy(error: Exception) -> str:
    """What an error says is wrong: a report has remedies of its own.

    >>> without_remedy(ValueError("'hbpack.json' is damaged (it is empty); run hbpack write, which rewrites it"))
    "'hbpack.json' is damaged (it is empty)"
    """
    return re.sub("; (run|tokenize) [^;]*$", "", str(error))
