"""What a document is on its way through the encoder, and what is put around it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from packer_cli.tokens.tokenizer import LoadedTokenizer


class Text(NamedTuple):
    """A text on its way to the backend."""

    line: int
    text: str
    spans: list[tuple[int, int]] | None
    """Char ranges to train on; None: all of it, and what is put around it."""
    is_chat: bool


class Row(NamedTuple):
    """A sample that is ready."""

    line: int
    input_ids: NDArray[np.int32]
    loss_mask: NDArray[np.int8]


class Frame:
    """Puts around a sample what belongs there: the post-processor's ids, and EOS if asked for."""

    def __init__(self, tokenizer: LoadedTokenizer, *, append_eos: bool):
        self.append_eos = append_eos
        self._eos = -1 if tokenizer.eos_token_id is None else tokenizer.eos_token_id
        self._before = np.array(tokenizer.prefix_ids, dtype=np.int32)
        self._after = np.array(tokenizer.suffix_ids, dtype=np.int32)
        self.is_empty = not len(self._before) and not len(self._after)
        """Whether nothing is put around plain texts."""

    def around(self, row: Row, *, trained: bool) -> Row:
        """With what the post-processor adds to a plain text; what comes after it is trained on."""
        if self.is_empty:
            return row
        head = np.full(len(self._before), trained, dtype=np.int8)
        tail = np.ones(len(self._after), dtype=np.int8)
        return Row(
            row.line,
            np.concatenate([self._before, row.input_ids, self._after]),
            np.concatenate([head, row.loss_mask, tail]),
        )

    def close(self, row: Row) -> Row:
        """With EOS at the end, if asked for and not there."""
        if not self.append_eos or len(row.input_ids) == 0 or row.input_ids[-1] == self._eos:
            return row
        ids = np.append(row.input_ids, np.int32(self._eos))
        return Row(row.line, ids, np.append(row.loss_mask, np.int8(1)))
