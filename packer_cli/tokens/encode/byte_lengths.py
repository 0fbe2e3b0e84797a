"""Bytes of its text that each token stands for, so that masks need no offsets from the tokenizer.

BPE over bytes, or over characters with a byte fallback, keeps all of a text: the bytes of its tokens, one after
another, are the text. Tokenizers also do a few things that change lengths, and this module accounts for each:

- U+2581 stands for a space, and `<0xAB>` for a byte (SentencePiece);
- a space is put before the text, or before each stretch between added tokens;
- an added token includes the white space around it (`lstrip`, `rstrip`);
- a normalizer composes characters (NFC).

If the lengths of a text do not add up, nothing is guessed: its masks come from offsets.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from packer_cli.format.ragged import Lists
from packer_cli.tokens.encode.unicode import is_settled
from packer_cli.tokens.tokenizer.loading import LoadedTokenizer

UNKNOWN_LENGTH = 1 << 30
"""Stands for an unknown number of half bytes; so large that the lengths of the text cannot add up."""
MARK = "\u2581"
"""SentencePiece's character for a space."""
_SPACES = "\t\n\x0b\x0c\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
_SPACES_AFTER = re.compile(f"[{_SPACES}]*")
_SPACE = re.compile(f"[{_SPACES}]")


TextSpans = tuple[int, list[tuple[int, int]]]
"""Size in bytes of a normalized text, without spaces put before it, and byte ranges in it."""
UNKNOWN_SPANS: TextSpans = (-1, [])
"""For a text that needs offsets."""


class ByteLengths:
    """The lengths of one tokenizer's tokens.

    Price: 3 ns a token, plus 0.5 us for each token that strips white space.
    """

    def __init__(self, tokenizer: LoadedTokenizer, pieces: Mapping[int, bytes], scheme: _Scheme):
        self._scheme = scheme
        self._table = _length_table(tokenizer, pieces, scheme)
        self._ends_stretch = _stretch_ends(tokenizer, scheme)
        self._greedy = _GreedyTokens(tokenizer.config, tokenizer.vocab_size)

    def locate(self, text: str, spans: list[tuple[int, int]], *, whole_last_char: bool) -> TextSpans:
        """Convert char ranges, in order, to byte ranges of the normalized text.

        Args:
            whole_last_char: False ends a range after the first byte of its last char: if a char is split over tokens,
                transformers' `assistant_masks` marks only the first of them at the end of a range.

        Raises:
            UnicodeEncodeError: a lone surrogate.
        """
        if text.isascii():
            return len(text), spans
        if self._scheme.space == MARK and MARK in text:
            return UNKNOWN_SPANS
        normalize: Callable[[str], str] = str
        if self._scheme.composes:
            # Python's tables and the tokenizer's agree on settled text only.
            if not is_settled(text):
                return UNKNOWN_SPANS
            if not unicodedata.is_normalized("NFC", text):
                if self._greedy.any:
                    return UNKNOWN_SPANS
                normalize = partial(unicodedata.normalize, "NFC")
        return _byte_spans(text, spans, normalize, whole_last_char=whole_last_char)

    def of(self, texts: list[str], ids: Lists) -> NDArray[np.int64]:
        """Return the half bytes of each token, int64[t].

        A token that is only a space put before the text takes half a byte of the next token, so that it is in the same
        ranges as that one's first char, as with offsets.
        """
        lengths = self._table.take(ids.values)
        if self._greedy.any:
            self._greedy.measure(texts, ids, lengths)
        if self._scheme.prefix != "never":
            self._take_prefixes(texts, ids, lengths)
        return lengths

    def _take_prefixes(self, texts: list[str], ids: Lists, lengths: NDArray[np.int64]) -> None:
        """Subtract the space put before each stretch.

        If a stretch begins with a space, there may be no such one; the lengths of its text then do not add up.
        """
        starts = ids.offsets[:-1]
        filled = ids.offsets[1:] > starts
        ends_stretch = self._ends_stretch[ids.values]
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
        followed = ~np.isin(alone + 1, ids.offsets)
        lengths[alone[followed] + 1] -= 1
        lengths[alone] = np.where(followed, 1, UNKNOWN_LENGTH)


def lengths_of(tokenizer: LoadedTokenizer, pieces: Mapping[int, bytes]) -> ByteLengths | None:
    """Return the lengths of a tokenizer's tokens, of which these are the bytes; None if they are not known."""
    scheme = _scheme_of(tokenizer.config)
    return None if scheme is None else ByteLengths(tokenizer, pieces, scheme)


def _byte_spans(
    text: str, spans: list[tuple[int, int]], normalize: Callable[[str], str], *, whole_last_char: bool
) -> TextSpans:
    """Return byte ranges of the normalized text; unknown if chars on both sides of a border compose."""
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


def _members_of(part: Any, key: str) -> list[dict[str, Any]]:
    """Return the component itself, or the components of a sequence."""
    if not part:
        return []
    if part.get("type") == "Sequence":
        return [found for inner in part.get(key, []) for found in _members_of(inner, key)]
    return [part]


class _GreedyTokens:
    """Added tokens that include the white space around them."""

    def __init__(self, config: dict[str, Any], vocab_size: int):
        tokens = [token for token in config.get("added_tokens") or [] if token["lstrip"] or token["rstrip"]]
        self.any = bool(tokens)
        self._tokens = {token["content"]: token for token in tokens}
        contents = sorted(self._tokens, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, contents)) or "(?!)")
        self._is_greedy = np.zeros(vocab_size, dtype=np.bool_)
        self._is_greedy[[token["id"] for token in tokens]] = True

    def measure(self, texts: list[str], ids: Lists, lengths: NDArray[np.int64]) -> None:
        """Write the lengths of these tokens; unknown in a text where the ids are not those found in it."""
        at = np.flatnonzero(self._is_greedy[ids.values])
        counts = np.diff(np.searchsorted(at, ids.offsets)).tolist()
        expected = ids.values[at].tolist()
        sizes: list[int] = []
        for text, count in zip(texts, counts, strict=True):
            found = self._find(text) if count else []
            same = [number for number, _ in found] == expected[len(sizes) : len(sizes) + count]
            sizes += [2 * size for _, size in found] if same else [UNKNOWN_LENGTH] * count
        lengths[at] = sizes

    def _find(self, text: str) -> list[tuple[int, int]]:
        """Find (id, bytes) of each such token in a text."""
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


class _Scheme(NamedTuple):
    """Scheme by which a tokenizer changes a text before merging."""

    space: str
    """The character for a space in the vocabulary."""
    prefix: Literal["never", "first", "always"]
    """Place of a space before the text: nowhere, at its beginning, or at each stretch between added tokens. Some
    tokenizers put none before another space."""
    ends_at_all: bool
    """Whether a stretch ends at all added tokens, or only at those found before normalizing."""
    composes: bool
    """Whether it applies NFC."""


def _scheme_of(config: dict[str, Any]) -> _Scheme | None:
    """Find the scheme of a parsed tokenizer.json; None if its tokens do not keep the bytes of their text."""
    model = config.get("model") or {}
    # Older files omit the model's type.
    is_bpe = model.get("type", "BPE" if "merges" in model else "") == "BPE"
    if not is_bpe or any(model.get(key) for key in ("dropout", "continuing_subword_prefix", "end_of_word_suffix")):
        return None
    normalizers = _members_of(config.get("normalizer"), "normalizers")
    splitters = _members_of(config.get("pre_tokenizer"), "pretokenizers")
    if any(part.get("type") == "ByteLevel" for part in splitters):
        return None if model.get("byte_fallback") else _byte_level(normalizers, splitters)
    # Without MARK in the vocabulary, a space would become its three bytes.
    return _sentencepiece(normalizers, splitters) if MARK in model.get("vocab", ()) else None


def _byte_level(normalizers: list[dict[str, Any]], splitters: list[dict[str, Any]]) -> _Scheme | None:
    if any(part.get("type") != "NFC" for part in normalizers):
        return None
    # If a splitter removes its matches, the lengths do not add up.
    if any(part.get("type") not in ("ByteLevel", "Split", "Digits") for part in splitters):
        return None
    spaced = any(part.get("add_prefix_space", True) for part in splitters if part.get("type") == "ByteLevel")
    if spaced and len(splitters) > 1:
        return None
    return _Scheme(" ", "always" if spaced else "never", True, bool(normalizers))


def _sentencepiece(normalizers: list[dict[str, Any]], splitters: list[dict[str, Any]]) -> _Scheme | None:
    steps = [_step(part) for part in normalizers]
    order = [step for step in steps if step != "cleans"]
    if order not in ([], ["marks"], ["prefix", "marks"]) or steps[len(steps) - len(order) :] != order:
        return None
    prefix: Literal["never", "first", "always"] = "always" if "prefix" in order else "never"
    marked = "marks" in order
    for part in splitters:
        kind = part.get("type")
        if kind == "Metaspace" and len(splitters) == 1 and part.get("replacement", MARK) == MARK:
            given: Any = part.get("prepend_scheme") or ("always" if part.get("add_prefix_space", True) else "never")
            # After a prefix that the normalizer puts, it puts none but behind tokens that are found later.
            if given not in (("always",) if "prefix" in order else ("never", "first", "always")):
                return None
            prefix = given
            marked = True
        elif kind != "Split" or not marked or part.get("pattern") != {"String": " "}:
            return None
    ends_at_all = bool(splitters) and splitters[0].get("type") == "Metaspace"
    return _Scheme(MARK if marked else " ", prefix, ends_at_all, False)


def _step(part: dict[str, Any]) -> str:
    kind = part.get("type")
    if kind == "Prepend" and part.get("prepend") in (MARK, " "):
        return "prefix"
    if kind == "Replace" and part.get("pattern") == {"String": " "} and part.get("content") == MARK:
        return "marks"
    # If these drop anything, the lengths do not add up.
    drops = kind == "Strip" or (kind == "Replace" and part.get("pattern") == {"Regex": " {2,}"})
    return "cleans" if drops and part.get("content", " ") in (" ", MARK) else "other"


def _length_table(tokenizer: LoadedTokenizer, pieces: Mapping[int, bytes], scheme: _Scheme) -> NDArray[np.int64]:
    """Make the table of each id's half bytes, int64[vocabulary]."""
    model, normalizer = tokenizer.config["model"], tokenizer.hf.backend_tokenizer.normalizer
    mark = scheme.space.encode()
    table = np.full(tokenizer.vocab_size, UNKNOWN_LENGTH, dtype=np.int64)
    table[[*pieces]] = [2 * len(piece.replace(mark, b" ")) for piece in pieces.values()]
    unknown = model["vocab"].get(model.get("unk_token") or "")
    if unknown is not None:
        table[unknown] = UNKNOWN_LENGTH
    for token in tokenizer.config.get("added_tokens") or []:
        content = token["content"]
        if token["normalized"] and normalizer is not None:
            content = normalizer.normalize_str(content)
        elif _is_only_piece(token, scheme):
            continue
        table[token["id"]] = 2 * len(content.encode().replace(mark, b" "))
        if token["lstrip"] or token["rstrip"]:
            table[token["id"]] = UNKNOWN_LENGTH
    return table


def _is_only_piece(token: dict[str, Any], scheme: _Scheme) -> bool:
    """Whether an added token contains U+2581. No text with known lengths does, so there its id stands for a piece."""
    return scheme.space == MARK and not token["normalized"] and MARK in token["content"]


def _stretch_ends(tokenizer: LoadedTokenizer, scheme: _Scheme) -> NDArray[np.bool_]:
    """Mark added tokens at which a stretch of text ends, bool[vocabulary]."""
    ends = np.zeros(tokenizer.vocab_size, dtype=np.bool_)
    for token in tokenizer.config.get("added_tokens") or []:
        if (scheme.ends_at_all or not token["normalized"]) and not _is_only_piece(token, scheme):
            ends[token["id"]] = True
    return ends
