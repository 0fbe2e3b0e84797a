"""Special tokens that people wrote into their own texts: finding them, and encoding them as plain text.

Follows transformers' `apply_chat_template(..., sanitize_control_tokens=True)`: before the template runs, control
tokens in the input are wrapped in two private-use characters; afterwards, the wrapped text is encoded without the
tokenizer's added tokens. Unlike transformers, this also makes loss masks. Only records with such texts pay for it.
"""

from __future__ import annotations

import re
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer_cli.tokens.encode.backends import CharRanges, ReferenceBackend
from packer_cli.tokens.tokenizer.loading import LoadedTokenizer

START, END = "\U000f0000", "\U000f0001"
"""transformers' own marks; as there, they are removed from the input."""


def patterns(tokens: tuple[str, ...]) -> tuple[re.Pattern[str], re.Pattern[str]]:
    """Return patterns of any of the tokens, longer ones first; and of one that transformers wrapped, or a mark."""
    from transformers.utils.chat_template_utils import _get_control_token_patterns

    found: tuple[re.Pattern[str], re.Pattern[str]] = _get_control_token_patterns(tokens)
    return found


class TokenFinder:
    """Tells fast whether a text contains any of some tokens.

    Price: 0.3 ns a char for each char that tokens begin with, and 30 ns for each place of one.
    """

    def __init__(self, tokens: tuple[str, ...]):
        self.pattern = patterns(tokens)[0]
        # If all alternatives begin with the same char, the search skips to that char at the speed of memory.
        groups = groupby(sorted(tokens), key=lambda token: token[:1])
        self._patterns = [patterns(tuple(group))[0] for _, group in groups]

    def finds(self, text: str) -> bool:
        """Whether a token is in the text."""
        for one in self._patterns:  # noqa: SIM110 - a generator would cost as much as the search
            if one.search(text) is not None:
                return True
        return False


class PlainContentEncoder:
    """Encodes texts in which transformers' `mark_control_tokens` wrapped tokens. About 1,000 records a second."""

    def __init__(self, tokenizer: LoadedTokenizer, reference: ReferenceBackend):
        self._added = tokenizer.added_tokens
        self._reference = reference
        self._split = patterns(tuple(self._added))[1]
        self._newline = reference.encode(["\n"]).values

    def encode(self, marked: str) -> tuple[NDArray[np.int32], CharRanges]:
        """Return the ids (int32[t]), and the chars of the marked text that each covers.

        Raises:
            ValueError: a token cannot be written as plain text with this vocabulary.
        """
        rows: list[tuple[Any, Any, Any]] = []
        position = 0
        for found in [*self._split.finditer(marked), None]:
            stop = found.start() if found is not None else len(marked)
            if stop > position or position == 0:
                row, starts, ends = self._piece(marked[position:stop], at_start=position == 0)
                rows.append((row, starts + position, ends + position))
            if found is None:
                break
            position = found.end()
            if token := found.group(1):
                row = np.asarray(self._as_text(token), dtype=np.int32)
                ends = np.full(len(row), position - 1)  # A range may begin in the token, and end with its last id.
                ends[-1:] = position
                rows.append((row, np.full(len(row), stop), ends))
        ids, starts, ends = map(np.concatenate, zip(*rows, strict=True))
        return ids, (starts, ends)

    def _piece(self, text: str, *, at_start: bool) -> tuple[Any, Any, Any]:
        if at_start:
            return self._with_ranges(text)
        # After a newline, the tokenizer puts no space before the piece, as it would at the beginning of a text.
        row, starts, ends = self._with_ranges("\n" + text)
        cut = len(self._newline)
        if np.array_equal(row[:cut], self._newline):
            return row[cut:], starts[cut:] - 1, ends[cut:] - 1
        return self._with_ranges(text)

    def _with_ranges(self, text: str) -> tuple[Any, Any, Any]:
        ids, ranges = self._reference.encode_with_ranges([text])
        return ids.values, *ranges[0]

    def _as_text(self, token: str) -> list[int]:
        newline = self._newline.tolist()
        row = self._reference.encode_as_text("\n" + token)
        row = row[len(newline) :] if row[: len(newline)] == newline else self._reference.encode_as_text(token)
        if self._added.get(token) in row:
            raise ValueError(f"{token!r} cannot be encoded as plain text: the tokenizer has no other ids for it")
        return row
