"""What the user decides of a WLB-LLM plan, as typed values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from packer_cli.plan.core.groups import Group
from packer_cli.plan.strategies.wlb.packers import StepPacker
from packer_cli.sizes import format_tokens


@dataclass(frozen=True, kw_only=True)
class WlbRules:
    """How steps are packed."""

    packer: StepPacker
    options: Any
    """Of the packer."""

    def micro_batches(self, group: Group) -> int:
        """Micro-batches of a replica in a step: by default, as many as its pipeline has stages."""
        return int(self.options.micro_batches or group.pp_size)

    def capacity(self, window: int) -> int:
        """Most tokens of a micro-batch."""
        return int(self.options.capacity(window))

    def require_room(self, group: Group) -> None:
        """Raise ValueError unless micro-batches hold a document as long as the context window, that of the group."""
        capacity = self.capacity(group.capacity)
        if capacity < group.capacity or capacity % group.align:
            multiple = f", and a multiple of {group.align} tokens" if group.align > 1 else ""
            raise ValueError(
                f"option 's_max' of packing {self.packer.name!r} must be at least the context window, "
                f"{format_tokens(group.capacity)}{multiple}, got {format_tokens(capacity)}"
            )
