"""Appearance of an option in the help. An option says so where it is defined."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum

Names = Callable[[], Iterable[str]]
"""Names that a registry holds, imported when a shell asks."""


class Panel(Enum):
    """A title, in the order of the help."""

    MAIN = "Options"
    TOKENS = "Reading and tokenizing"
    GROUPS = "Groups, model and GPUs"
    PACKING = "Packing"
    BALANCE = "Balance, steps and order"
    OUTPUT = "Output"
    SCALE = "Scale"


@dataclass(frozen=True)
class Shown:
    """Mark of a field that is an option. The first paragraph of the field's docstring is the short help."""

    panel: Panel = Panel.MAIN
    metavar: str = "N"
    """Word that stands for the value, unless its type lists all values. A shell completes its lower-case words, or
    files where it begins with PATH or FILE."""
    names: Names | None = None
    """Names that a shell completes instead."""
    is_common: bool = False
    """Whether most people set it, so that the short help has it."""
