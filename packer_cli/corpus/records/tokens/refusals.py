"""Rows that are left while some are refused, and the reason for each of these."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from packer_cli.corpus.ragged import take
from packer_cli.corpus.records.tokens.columns import IDS
from packer_cli.corpus.types import Reject, TokenRows

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class Left:
    """The rows of tokenized records that are left."""

    def __init__(self, rows: TokenRows) -> None:
        import numpy as np

        self.columns = rows.columns
        """Those of the rows that are left."""
        self.row = np.arange(len(rows.lines))
        """int64[k]: which of the given rows are left."""
        self._lines = rows.lines
        self._reasons: dict[int, str] = {}

    @property
    def lines(self) -> NDArray[np.int64]:
        """int64[k]: of the rows that are left."""
        return self._lines[self.row]

    @property
    def refused(self) -> NDArray[np.bool_]:
        """bool[k]: whether a row was refused since the last `drop`."""
        import numpy as np

        return np.isin(self.row, list(self._reasons))

    def refuse(self, wrong: NDArray[np.bool_], say: Callable[[int], str]) -> None:
        """Refuse rows (bool[k]); the first reason of a row counts."""
        import numpy as np

        for row in np.flatnonzero(wrong).tolist():
            self._reasons.setdefault(int(self.row[row]), say(row))

    def refuse_tokens(self, wrong: NDArray[np.int64], say: Callable[[int, int], str]) -> None:
        """Refuse the rows of these tokens (rising); `say` gets the first one of a row, and its place in the row."""
        import numpy as np

        if not len(wrong):
            return
        offsets = self.columns[IDS].offsets
        rows, first = np.unique(np.searchsorted(offsets, wrong, side="right") - 1, return_index=True)
        for row, at in zip(rows.tolist(), wrong[first].tolist(), strict=True):
            self._reasons.setdefault(int(self.row[row]), say(at, at - int(offsets[row])))

    def drop(self) -> None:
        """Leave out the rows that were refused."""
        import numpy as np

        is_left = ~self.refused if self._reasons else None
        if is_left is None or is_left.all():
            return
        left = np.flatnonzero(is_left)
        self.row = self.row[left]
        self.columns = {name: take(lists, left) for name, lists in self.columns.items()}

    def rejects(self) -> list[Reject]:
        """The rows that were refused, in order."""
        return [Reject(int(self._lines[row]), self._reasons[row]) for row in sorted(self._reasons)]
