"""How a tokenizer changes a text before merging, read from its tokenizer.json, and the bytes of its ids."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from packer_cli.tokens.tokenizer.loading import LoadedTokenizer

UNKNOWN_LENGTH = 1 << 30
"""Stands for an unknown number of half bytes; so large that the lengths of the text cannot add up."""
MARK = "\u2581"
"""SentencePiece's character for a space."""
_BYTE_PIECE = re.compile("<0x[0-9A-F]{2}>")


class Scheme(NamedTuple):
    """How a tokenizer changes a text before merging."""

    space: str
    """The character for a space in the vocabulary."""
    prefix: Literal["never", "first", "always"]
    """Where to put a space before the text: nowhere, at its beginning, or at each stretch between added tokens. Some
    tokenizers put none before another space."""
    ends_at_all: bool
    """Whether a stretch ends at all added tokens, or only at those found before normalizing."""
    composes: bool
    """Whether it applies NFC."""
    maps_chars: bool
    """Whether it applies a SentencePiece charsmap."""


def scheme_of(config: dict[str, Any]) -> Scheme | None:
    """The scheme of a parsed tokenizer.json; None if its tokens do not keep the bytes of their text."""
    model = config.get("model") or {}
    # Older files omit the model's type.
    is_bpe = model.get("type", "BPE" if "merges" in model else "") == "BPE"
    if not is_bpe or any(model.get(key) for key in ("dropout", "continuing_subword_prefix", "end_of_word_suffix")):
        return None
    normalizers = members_of(config.get("normalizer"), "normalizers")
    splitters = members_of(config.get("pre_tokenizer"), "pretokenizers")
    if any(part.get("type") == "ByteLevel" for part in splitters):
        return None if model.get("byte_fallback") else _byte_level(normalizers, splitters)
    # Without MARK in the vocabulary, a space would become its three bytes.
    return _sentencepiece(normalizers, splitters) if MARK in model.get("vocab", ()) else None


def _byte_level(normalizers: list[dict[str, Any]], splitters: list[dict[str, Any]]) -> Scheme | None:
    if any(part.get("type") != "NFC" for part in normalizers):
        return None
    # If a splitter removes its matches, the lengths do not add up.
    if any(part.get("type") not in ("ByteLevel", "Split", "Digits") for part in splitters):
        return None
    spaced = any(part.get("add_prefix_space", True) for part in splitters if part.get("type") == "ByteLevel")
    if spaced and len(splitters) > 1:
        return None
    return Scheme(" ", "always" if spaced else "never", True, bool(normalizers), False)


def _sentencepiece(normalizers: list[dict[str, Any]], splitters: list[dict[str, Any]]) -> Scheme | None:
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
    maps_chars = any(part.get("type") == "Precompiled" for part in normalizers)
    return Scheme(MARK if marked else " ", prefix, ends_at_all, False, maps_chars)


def _step(part: dict[str, Any]) -> str:
    kind = part.get("type")
    if kind == "Prepend" and part.get("prepend") in (MARK, " "):
        return "prefix"
    if kind == "Replace" and part.get("pattern") == {"String": " "} and part.get("content") == MARK:
        return "marks"
    # If these drop anything, the lengths do not add up; charsmaps are checked for each text.
    drops = kind == "Strip" or (kind == "Replace" and part.get("pattern") == {"Regex": " {2,}"})
    return "cleans" if kind == "Precompiled" or (drops and part.get("content", " ") in (" ", MARK)) else "other"


def members_of(part: Any, key: str) -> list[dict[str, Any]]:
    """The component itself, or the components of a sequence."""
    if not part:
        return []
    if part.get("type") == "Sequence":
        return [found for inner in part.get(key, []) for found in members_of(inner, key)]
    return [part]


def normalizer_of(part: dict[str, Any] | None) -> Any:
    """A normalizer from its JSON; None for None."""
    from tokenizers import Tokenizer

    bare = {"version": "1.0", "added_tokens": [], "model": {"type": "BPE", "vocab": {}, "merges": []}}
    return Tokenizer.from_str(json.dumps({**bare, "normalizer": part})).normalizer


def _byte_alphabet() -> frozenset[str]:
    """The 256 characters that stand for bytes in a byte-level vocabulary."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    return frozenset(chr(code) for code in shown) | {chr(256 + extra) for extra in range(256 - len(shown))}


def length_table(tokenizer: LoadedTokenizer, scheme: Scheme) -> NDArray[np.int64]:
    """int64[vocabulary]: half bytes of each id."""
    model = tokenizer.config["model"]
    vocab: dict[str, int] = model["vocab"]
    normalizer = normalizer_of(tokenizer.config["normalizer"])
    is_byte_level = any(
        part.get("type") == "ByteLevel" for part in members_of(tokenizer.config["pre_tokenizer"], "pretokenizers")
    )
    table = np.full(tokenizer.vocab_size, UNKNOWN_LENGTH, dtype=np.int64)
    if is_byte_level:
        numbers, sizes = (np.fromiter(values, np.int64, len(vocab)) for values in (vocab.values(), map(len, vocab)))
        of_bytes = np.fromiter(map(_byte_alphabet().issuperset, vocab), np.bool_, len(vocab))
        table[numbers[of_bytes]] = 2 * sizes[of_bytes]
    else:
        for piece, number in vocab.items():
            table[number] = 2 * _marked_size(piece, scheme)
            if model.get("byte_fallback") and _BYTE_PIECE.fullmatch(piece):
                table[number] = 2
    unknown = vocab.get(model.get("unk_token") or "")
    if unknown is not None:
        table[unknown] = UNKNOWN_LENGTH
    for token in tokenizer.config.get("added_tokens") or []:
        content = token["content"]
        if token["normalized"] and normalizer is not None:
            content = normalizer.normalize_str(content)
        elif _is_only_piece(token, scheme):
            continue
        table[token["id"]] = 2 * _marked_size(content, scheme)
        if token["lstrip"] or token["rstrip"]:
            table[token["id"]] = UNKNOWN_LENGTH
    return table


def _marked_size(piece: str, scheme: Scheme) -> int:
    return len(piece.replace(MARK, " ").encode() if scheme.space == MARK else piece.encode())


def _is_only_piece(token: dict[str, Any], scheme: Scheme) -> bool:
    """Whether an added token contains U+2581. No text with known lengths does, so there its id stands for a piece."""
    return scheme.space == MARK and not token["normalized"] and MARK in token["content"]


def stretch_ends(tokenizer: LoadedTokenizer, scheme: Scheme) -> NDArray[np.bool_]:
    """bool[vocabulary]: added tokens at which a stretch of text ends."""
    ends = np.zeros(tokenizer.vocab_size, dtype=np.bool_)
    for token in tokenizer.config.get("added_tokens") or []:
        if (scheme.ends_at_all or not token["normalized"]) and not _is_only_piece(token, scheme):
            ends[token["id"]] = True
    return ends
