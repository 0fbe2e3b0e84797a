"""Texts -> ids: `tokenizers` (the reference, with offsets where asked) and gigatoken (20-90 times as fast).

gigatoken adds no BOS or EOS and gives no offsets. Its ids are those of `tokenizers`, except on code points
that Unicode 13.0 did not assign (see `backends_unicode`); texts that hold any go to `tokenizers`.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from packer_cli.errors import RunError, TokenizerError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from packer_cli.tokens.tokenizer import LoadedTokenizer


class BackendMismatch(RunError):  # noqa: N818 - a signal: the caller encodes the part again
    """A fast way gave another result than the reference on a sampled text; the part must be done again.

    Catch it around all of a part, drop what the part gave so far, and encode the part from its beginning
    with `encoder.fallback(mismatch)`.
    """

    def __init__(self, message: str, *, line: int, what: Literal["ids", "template"] = "ids"):
        super().__init__(message)
        self.line = line
        self.what = what
        """`ids`: another backend helps. `template`: conversations must be rendered in the slow way."""


class Ids(NamedTuple):
    """Ids of n texts, flat."""

    input_ids: NDArray[np.int32]
    offsets: NDArray[np.int64]
    """int64[n+1]"""


def flat(rows: list[Any]) -> Ids:
    """One flat array of several; each row is an array or a list of ints."""
    offsets = np.zeros(len(rows) + 1, dtype=np.int64)
    np.cumsum([len(row) for row in rows], out=offsets[1:])
    if not rows:
        return Ids(np.zeros(0, dtype=np.int32), offsets)
    parts = [np.asarray(row, dtype=np.int32) for row in rows]
    return Ids(np.concatenate(parts), offsets)


class ReferenceBackend:
    """The `tokenizers` library. 4-5 MB/s on two cores."""

    name = "tokenizers"

    def __init__(self, tokenizer: LoadedTokenizer):
        from tokenizers import Tokenizer

        # The post-processor is left out: what it adds is added by the encoder, and without it offsets
        # keep the space at a token's beginning.
        config = {**tokenizer.config, "post_processor": None}
        self._tokenizer = Tokenizer.from_str(json.dumps(config, ensure_ascii=False))
        self._tokenizer.encode_special_tokens = bool(tokenizer.hf.split_special_tokens)

    def encode(self, texts: list[str]) -> Ids:
        """Ids without anything added. A `UnicodeEncodeError` must have been ruled out before."""
        return flat([one.ids for one in self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)])

    def encode_with_offsets(self, text: str) -> tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.int64]]:
        """ids int32[t], first char int64[t] and one past the last char int64[t] of each token."""
        one = self._tokenizer.encode(text, add_special_tokens=False)
        pairs = np.asarray(one.offsets, dtype=np.int64).reshape(-1, 2)
        return np.asarray(one.ids, dtype=np.int32), pairs[:, 0], pairs[:, 1]

    def encode_as_text(self, text: str) -> list[int]:
        """Ids of a text in which nothing is a special or added token."""
        tokenizer = self._tokenizer
        if tokenizer.normalizer is not None:
            text = tokenizer.normalizer.normalize_str(text)
        pieces = [text]
        if tokenizer.pre_tokenizer is not None:
            pieces = [piece for piece, _ in tokenizer.pre_tokenizer.pre_tokenize_str(text)]
        return [token.id for piece in pieces for token in tokenizer.model.tokenize(piece)]


class GigatokenBackend:
    """gigatoken for settled text, the reference for the rest.

    Raises: TokenizerError where gigatoken cannot do this tokenizer.
    """

    name = "gigatoken"

    def __init__(self, tokenizer: LoadedTokenizer, reference: ReferenceBackend):
        if tokenizer.hf.split_special_tokens:
            raise TokenizerError("gigatoken cannot split special tokens, as this tokenizer's config asks for")
        try:
            import gigatoken

            self._tokenizer = gigatoken.Tokenizer.from_json(tokenizer.backend_json)
        except Exception as error:
            reason = " ".join(str(error).split())[:200] or type(error).__name__
            raise TokenizerError(
                f"gigatoken cannot load this tokenizer ({reason}); use --tokenizer-backend auto or tokenizers"
            ) from None
        self._reference = reference

    def encode(self, texts: list[str]) -> Ids:
        """Ids without anything added. A `UnicodeEncodeError` must have been ruled out before."""
        from packer_cli.tokens.backends_unicode import is_settled

        unsettled = [number for number, text in enumerate(texts) if not is_settled(text)]
        if not unsettled:
            return self._encode(texts)
        others = set(unsettled)
        fast = self._encode([text for number, text in enumerate(texts) if number not in others])
        slow = self._reference.encode([texts[number] for number in unsettled])
        rows: list[Any] = [None] * len(texts)
        for source, numbers in (
            (fast, [number for number in range(len(texts)) if number not in others]),
            (slow, unsettled),
        ):
            for row, number in enumerate(numbers):
                rows[number] = source.input_ids[source.offsets[row] : source.offsets[row + 1]]
        return flat(rows)

    def _encode(self, texts: list[str]) -> Ids:
        if not texts:
            return flat([])
        layout = self._tokenizer.encode_batch(texts).layout
        offsets = np.asarray(layout.offsets.data, dtype=np.int64)
        content = np.asarray(layout.content.data)[: offsets[-1]]
        return Ids(content.view(np.int32) if content.dtype == np.uint32 else content.astype(np.int32), offsets)


class ByteLengths:
    """How many bytes of a text each id stands for, for tokenizers that keep all bytes (byte-level BPE).

    `table` is None for other kinds; masks then need offsets.
    """

    def __init__(self, tokenizer: LoadedTokenizer):
        config = tokenizer.config
        self.needs_nfc = (config.get("normalizer") or {}).get("type") == "NFC"
        self.table: NDArray[np.int64] | None = None
        if _is_byte_level(config):
            self.table = _byte_lengths(tokenizer)

    def is_exact_for(self, text: str) -> bool:
        """Whether the ids' bytes are those of this text, as far as the normalizer goes."""
        if not self.needs_nfc or text.isascii():
            return True
        import unicodedata

        # Tables of several versions agree on text that is settled; on the rest, sums are not to be trusted.
        from packer_cli.tokens.backends_unicode import is_settled

        return unicodedata.is_normalized("NFC", text) and is_settled(text)


def _members(part: Any, key: str) -> list[dict[str, Any]]:
    """A component and the components in it."""
    if not part:
        return []
    if part.get("type") == "Sequence":
        return [found for inner in part.get(key, []) for found in _members(inner, key)]
    return [part]


def _is_byte_level(config: dict[str, Any]) -> bool:
    model = config.get("model") or {}
    # Older files leave the model's type out.
    is_bpe = model.get("type", "BPE" if "merges" in model else "") == "BPE"
    plain = not any(
        model.get(key) for key in ("byte_fallback", "dropout", "continuing_subword_prefix", "end_of_word_suffix")
    )
    normalizers = _members(config.get("normalizer"), "normalizers")
    splitters = _members(config.get("pre_tokenizer"), "pretokenizers")
    decoders = _members(config.get("decoder"), "decoders")
    return (
        is_bpe
        and plain
        and all(part.get("type") == "NFC" for part in normalizers)
        and len(normalizers) <= 1
        and (config.get("normalizer") or {}).get("type") != "Sequence"
        and all(part.get("type") in ("ByteLevel", "Split", "Digits") for part in splitters)
        and all(str(part.get("behavior", "")).lower() != "removed" for part in splitters)
        and any(part.get("type") == "ByteLevel" for part in splitters)
        and any(part.get("type") == "ByteLevel" for part in decoders)
    )


def _byte_alphabet() -> frozenset[str]:
    """The 256 characters that stand for bytes in a byte-level vocabulary."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    return frozenset(chr(code) for code in shown) | {chr(256 + extra) for extra in range(256 - len(shown))}


def _byte_lengths(tokenizer: LoadedTokenizer) -> NDArray[np.int64]:
    from packer_cli.tokens.masks import UNKNOWN_LENGTH

    alphabet = _byte_alphabet()
    table = np.full(tokenizer.vocab_size, UNKNOWN_LENGTH, dtype=np.int64)
    for piece, number in tokenizer.config["model"]["vocab"].items():
        if alphabet.issuperset(piece):
            table[number] = len(piece)
    unknown = tokenizer.config["model"].get("unk_token")
    if unknown is not None and unknown in tokenizer.config["model"]["vocab"]:
        table[tokenizer.config["model"]["vocab"][unknown]] = UNKNOWN_LENGTH
    for token in tokenizer.config.get("added_tokens") or []:
        # One that takes the spaces around it along has no length of its own.
        greedy = token.get("lstrip") or token.get("rstrip")
        table[token["id"]] = UNKNOWN_LENGTH if greedy else len(token["content"].encode())
    return table
