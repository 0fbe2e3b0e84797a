"""A config file in the making."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(kw_only=True)
class Draft:
    """Options of `hbpack pack`, by their names in a config file."""

    inputs: list[str] = field(default_factory=list)
    options: dict[str, Any] = field(default_factory=dict)
    """Name -> value, in the order of the file."""
    reasons: dict[str, str] = field(default_factory=dict)
    """Name -> why it has this value."""
    unknown: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Name -> (an example value, what to put there): options that stand in the file as comments."""
    lost: list[str] = field(default_factory=list)
    """What of another trainer's file could not be carried over, in words."""

    def set(self, name: str, value: Any, reason: str = "") -> None:
        """Set an option, and say why."""
        self.unknown.pop(name, None)
        self.options[name] = value
        if reason:
            self.reasons[name] = reason

    def ask(self, name: str, example: str, what: str) -> None:
        """Leave an option to the reader, unless it is set."""
        if name not in self.options:
            self.unknown[name] = (example, what)
