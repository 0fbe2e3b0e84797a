"""A row of a comparison, and what came of it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from packer_cli.compare.row_figures import RowFigures
from packer_cli.compare.rows import Row
from packer_cli.compare.savings import Savings
from packer_cli.config.effects import without_effect

_OPTIONS = ("packing", "fill", "balance", "overflow")


@dataclass(frozen=True, kw_only=True)
class ComparedRow:
    """A row and what came of it."""

    spec: Row
    error: str | None
    """Why it failed; None if it has figures."""
    figures: RowFigures | None
    saves: Savings | None = None
    """What its predicted epoch saves over the baseline's."""

    def values(self) -> dict[str, Any]:
        """JSON values."""
        config = self.spec.config
        return {
            "name": self.spec.name,
            "kind": self.spec.kind,
            "note": self.spec.note,
            "is_own": self.spec.is_own,
            "options": {
                "strategy": config.strategy,
                "groups": ",".join(map(str, config.groups)),
                **{name: getattr(config, name) for name in _OPTIONS if name not in without_effect(config)},
            },
            "error": self.error,
            **(self.figures.values() if self.figures else {}),
            **({"saves": asdict(self.saves)} if self.saves else {}),
        }
