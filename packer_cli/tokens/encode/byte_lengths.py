"""How many bytes of its text each token stands for, so that masks need no offsets from the tokenizer.

BPE over bytes, or over characters with a byte fallback, keeps all of a text: the bytes of its tokens, one after
another, are the text. Around that, tokenizers do a few things that change lengths, and each is accounted for:

- U+2581 stands for a space, and `<0xAB>` for a byte (SentencePiece);
- a space that is not in the text goes before it, or before each stretch between added tokens;
- an added token takes the white space beside it along (`lstrip`, `rstrip`);
- a normalizer composes characters (NFC), or replaces single ASCII characters (SentencePiece's).

A text for which the lengths do not add up is never guessed at: its masks come from offsets.
"""

from __future__ import annotations

import re
import unicodedata
from typing import TYPE_CHECKING, Any

import numpy as np

from packer_cli.tokens.encode.byte_schemes import (
    MARK,
    UNKNOWN_LENGTH,
    length_table,
    members_of,
    normalizer_of,
    scheme_of,
    stretch_ends,
)
from packer_cli.tokens.encode.unicode import is_settled

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from packer_cli.tokens.encode.backends import Ids
    from packer_cli.tokens.tokenizer.loading import LoadedTokenizer

_SPACES = "\t\n\x0b\x0c\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
_SPACES_AFTER = re.compile(f"[{_SPACES}]*")
_SPACE = re.compile(f"[{_SPACES}]")


TextSpans = tuple[int, list[tuple[int, int]]]
"""Bytes of a normalized text, without spaces put before it, and byte ranges in it."""
UNKNOWN_SPANS: TextSpans = (-1, [])
"""Of a text where only offsets tell."""


class ByteLengths:
    """The lengths for one tokenizer.

    Price: 3 ns a token; with tokens that strip white space 0.5 us for each of them.
    """

    def __init__(self, tokenizer: LoadedTokenizer):
        config = tokenizer.config
        self._scheme = None if tokenizer.hf.split_special_tokens else scheme_of(config)
        if self._scheme is None:
            return
        self._table = length_table(tokenizer, self._scheme)
        self._has_marks = self._scheme.space == MARK
        self._charsmap = _Charsmap(config) if self._scheme.maps_chars else None
        self._ends_stretch = stretch_ends(tokenizer, self._scheme)
        self._greedy = _GreedyTokens(config, tokenizer.vocab_size)

    @property
    def are_known(self) -> bool:
        """Whether any text of this tokenizer has lengths."""
        return self._scheme is not None

    @property
    def keep_ascii(self) -> bool:
        """Whether the char ranges of ASCII are its byte ranges: `locate` need not be asked."""
        return self._charsmap is None

    def locate(self, text: str, spans: list[tuple[int, int]], *, whole_last_char: bool) -> TextSpans:
        """Char ranges, in order, as byte ranges of the normalized text.

        whole_last_char: False ends a range after the first byte of its last char. A char may be split over tokens,
        and then transformers' `assistant_masks` marks only the first of them at the end of a range.

        Raises: UnicodeEncodeError (a lone surrogate).
        """
        assert self._scheme is not None
        if self._charsmap is not None and not self._charsmap.keeps_lengths(text):
            return UNKNOWN_SPANS
        if text.isascii():
            return len(text), spans
        if self._has_marks and MARK in text:
            return UNKNOWN_SPANS
        normalize: Callable[[str], str] = str
        if self._scheme.composes:
            # Python's tables and the tokenizer's agree on settled text only.
            if not is_settled(text):
                return UNKNOWN_SPANS
            if not unicodedata.is_normalized("NFC", text):
                if self._greedy.any:
                    return UNKNOWN_SPANS
                normalize = _nfc
        return _byte_spans(text, spans, normalize, whole_last_char=whole_last_char)

    def of(self, texts: list[str], ids: Ids) -> NDArray[np.int64]:
        """Half bytes of each token, int64[t].

        A token that is nothing but a space put before the text takes half a byte of the next one, so that it is in
        the ranges in which that one's first char is, as its offsets would have it.
        """
        assert self._scheme is not None
        lengths = self._table[ids.input_ids]
        if self._greedy.any:
            self._greedy.measure(texts, ids, lengths)
        if self._scheme.prefix != "never":
            self._take_prefixes(texts, ids, lengths)
        return lengths

    def _take_prefixes(self, texts: list[str], ids: Ids, lengths: NDArray[np.int64]) -> None:
        """A stretch that begins with a space may get no other; the sum of its text's lengths is then too small."""
        assert self._scheme is not None
        starts = ids.offsets[:-1]
        filled = ids.offsets[1:] > starts
        ends_stretch = self._ends_stretch[ids.input_ids]
        if self._scheme.prefix == "first":
            at = starts[filled & np.array([not text.startswith(" ") for text in texts], dtype=np.bool_)]
        else:
            is_first = np.zeros(len(lengths) + 1, dtype=np.bool_)
            is_first[1:] = ends_stretch
            is_first[starts[filled]] = True
            at = np.flatnonzero(is_first[:-1])
        at = at[~ends_stretch[at]]
        lengths[at] -= 2
        alone = at[lengths[at] == 0]
        followed = alone + 1 < len(lengths)
        lengths[alone[followed] + 1] -= 1
        lengths[alone] = np.where(followed, 1, UNKNOWN_LENGTH)


def _nfc(text: str) -> str:
    return unicodedata.normalize("NFC", text)


def _byte_spans(
    text: str, spans: list[tuple[int, int]], normalize: Callable[[str], str], *, whole_last_char: bool
) -> TextSpans:
    """Unknown where a char of one side of a border composes with one of the other."""
    pieces: list[str] = []
    places: list[tuple[int, int]] = []
    chars = size = 0

    def go_to(char: int) -> int:
        nonlocal chars, size
        piece = normalize(text[chars:char])
        pieces.append(piece)
        size += len(piece.encode())
        chars = char
        return size

    for start, stop in spans:
        if stop <= start:
            continue
        first = go_to(start)
        places.append((first, go_to(stop) if whole_last_char else go_to(stop - 1) + 1))
    go_to(len(text))
    if normalize is not str and "".join(pieces) != normalize(text):
        return UNKNOWN_SPANS
    return size, places


class _Charsmap:
    """For which texts a SentencePiece charsmap keeps the number of bytes of each char."""

    def __init__(self, config: dict[str, Any]):
        maps = [part for part in members_of(config["normalizer"], "normalizers") if part["type"] == "Precompiled"]
        self._normalizer = normalizer_of({"type": "Sequence", "normalizers": maps})
        ascii_chars = {chr(code): self._normalizer.normalize_str(chr(code)) for code in range(128)}
        self._translation = str.maketrans(ascii_chars)
        changes = [char for char, mapped in ascii_chars.items() if len(mapped.encode()) != 1]
        if len(self._normalizer.normalize_str("\r\n")) != 2:
            changes.append("\r\n")
        self._changes = re.compile("|".join(map(re.escape, changes)) or "(?!)")

    def keeps_lengths(self, text: str) -> bool:
        if self._changes.search(text):
            return False
        return text.isascii() or bool(self._normalizer.normalize_str(text) == text.translate(self._translation))


class _GreedyTokens:
    """Added tokens that take the white space beside them along."""

    def __init__(self, config: dict[str, Any], vocab_size: int):
        tokens = [token for token in config.get("added_tokens") or [] if token["lstrip"] or token["rstrip"]]
        self.any = bool(tokens)
        self._tokens = {token["content"]: token for token in tokens}
        contents = sorted(self._tokens, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, contents)) or "(?!)")
        self._is_greedy = np.zeros(vocab_size, dtype=np.bool_)
        self._is_greedy[[token["id"] for token in tokens]] = True

    def measure(self, texts: list[str], ids: Ids, lengths: NDArray[np.int64]) -> None:
        """Write the lengths of these tokens, where those in the ids are those in the text."""
        at = np.flatnonzero(self._is_greedy[ids.input_ids])
        counts = np.diff(np.searchsorted(at, ids.offsets)).tolist()
        expected = ids.input_ids[at].tolist()
        sizes: list[int] = []
        for text, count in zip(texts, counts, strict=True):
            found = self._find(text) if count else []
            same = [number for number, _ in found] == expected[len(sizes) : len(sizes) + count]
            sizes += [2 * size for _, size in found] if same else [UNKNOWN_LENGTH] * count
        lengths[at] = sizes

    def _find(self, text: str) -> list[tuple[int, int]]:
        """(id, bytes) of each."""
        found = []
        past = 0
        for match in self._pattern.finditer(text):
            token = self._tokens[match.group()]
            start, stop = match.span()
            if token["lstrip"]:
                while start > past and _SPACE.match(text, start - 1):
                    start -= 1
            if token["rstrip"]:
                stop = _SPACES_AFTER.match(text, stop).end()  # type: ignore[union-attr]
            past = stop
            found.append((token["id"], len(text[start:stop].encode())))
        return found
