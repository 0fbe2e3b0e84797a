"""What a function of Python gives: JSON values, and tables in a notebook."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from packer_cli.format.records import json_values
from packer_cli.tables.html import tables_html
from packer_cli.tables.table import Table


class Result:
    """A result that notebooks show."""

    def values(self) -> dict[str, Any]:
        """JSON values, as the command prints them with `--json`."""
        return dict(json_values(self))

    def _tables(self) -> Iterable[Table]:
        raise NotImplementedError

    def _repr_html_(self) -> str:
        return tables_html(self._tables())
