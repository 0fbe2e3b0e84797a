"""Results of Python functions: JSON values, and tables in a notebook or as text."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any

from packer_cli.format.records import json_values
from packer_cli.tables.html import tables_html
from packer_cli.tables.table import Table
from packer_cli.tables.text import tables_text

JsonValues = dict[str, Any]
"""Values that `--json` prints of a result; `schemas/output/` describes them."""


class Result(ABC):
    """A result that notebooks show, and Python prints, as tables."""

    def values(self) -> JsonValues:
        """Return JSON values, as the command prints them with `--json`."""
        return dict(json_values(self))

    def __repr__(self) -> str:
        return tables_text(self._tables(), None)

    @abstractmethod
    def _tables(self) -> Iterable[Table]: ...

    def _repr_html_(self) -> str:
        return tables_html(self._tables())
