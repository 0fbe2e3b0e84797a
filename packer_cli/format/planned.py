"""The options of a set's plan that readers ask for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from packer_cli.format.constants import VALIDATION, Mask


class SetsAside:
    """The facts of validation that both a plan's file and `hbpack.json` know."""

    if TYPE_CHECKING:  # Each has these fields in a place of its own.
        validation: str | None
        is_validation: bool

    @property
    def sets_aside(self) -> bool:
        """Whether there is a validation set beside it."""
        return self.validation is not None and not self.is_validation

    @property
    def sets(self) -> tuple[str, ...]:
        """Folders of the sets of this plan in the folder of the plan, which is the first set's."""
        return ("", VALIDATION) if self.sets_aside else ("",)


@dataclass(frozen=True, kw_only=True)
class PlanOptions(SetsAside):
    """The options of a plan that readers of the set ask for."""

    strategy: str = ""
    packing: str = ""
    overflow: str = ""
    global_tokens: int | None = None
    mask: Mask = "document"
    validation: str | None = None
    is_validation: bool = False
    gpu_model: Mapping[str, object] | None = None
    """The model of GPUs by which the seconds of the plan's steps were predicted."""
