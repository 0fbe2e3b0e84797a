"""Texts -> ids: `tokenizers` (the reference, with offsets on request) and gigatoken (20-90 times as fast).

gigatoken adds no BOS or EOS and gives no offsets. Its ids are those of `tokenizers`, except on recent
Unicode code points (see `encode.unicode`); words that contain any go to `tokenizers`.
"""

from __future__ import annotations

import json
import re
import string
from itertools import chain, pairwise, zip_longest
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from packer_cli.errors import RunError, TokenizerError
from packer_cli.format.ragged import offsets_of
from packer_cli.tokens.encode.unicode import asks_unicode, is_settled, unsettled_places
from packer_cli.tokens.tokenizer.loading import LoadedTokenizer


class BackendMismatch(RunError):  # noqa: N818 - a signal: the caller encodes the part again
    """A fast way and the reference disagree on a sampled text; the part must be encoded again.

    Catch it around a whole part, discard the part's results so far, and encode the part from its beginning with
    `encoder.fallback(mismatch, place)`.
    """

    def __init__(self, why: str, *, line: int, what: Literal["ids", "template"] = "ids"):
        super().__init__(why)
        self.line = line
        """Line of the document."""
        self.what = what
        """`ids`: use the reference backend. `template`: render conversations in the slow way."""


class Ids(NamedTuple):
    """Ids of n texts, in flat arrays."""

    input_ids: NDArray[np.int32]
    offsets: NDArray[np.int64]
    """int64[n+1]"""

    def row(self, number: int) -> NDArray[np.int32]:
        """Return the ids of one text."""
        return self.input_ids[self.offsets[number] : self.offsets[number + 1]]

    def split(self, number: int) -> tuple[Ids, Ids]:
        """Split off the ids of the first texts, so many, from those of the others."""
        at = self.offsets[number]
        others = Ids(self.input_ids[at:], self.offsets[number:] - at)
        return Ids(self.input_ids[:at], self.offsets[: number + 1]), others


class CharRanges(NamedTuple):
    """The chars of its text that each of t tokens covers; tokens that share a char all have its range."""

    starts: NDArray[np.int64]
    """int64[t]"""
    ends: NDArray[np.int64]
    """int64[t]: one past the last char."""


def flat(rows: list[Any]) -> Ids:
    """Concatenate rows into one flat array; the rows are all arrays (int32 or uint32), or all lists of ints."""
    offsets = offsets_of(np.array([len(row) for row in rows], np.int64))
    if not rows:
        joined = np.zeros(0, dtype=np.int32)
    elif isinstance(rows[0], np.ndarray):
        joined = rows[0] if len(rows) == 1 else np.concatenate(rows)
    else:
        joined = np.fromiter(chain.from_iterable(rows), dtype=np.int32, count=int(offsets[-1]))
    return Ids(joined.view(np.int32), offsets)


class ReferenceBackend:
    """The `tokenizers` library. 4-5 MB/s on two cores."""

    name = "tokenizers"

    def __init__(self, tokenizer: LoadedTokenizer):
        self._tokenizer = _without_processor(tokenizer)
        self._tokenizer.encode_special_tokens = bool(tokenizer.hf.split_special_tokens)

    def encode(self, texts: list[str]) -> Ids:
        """Encode texts without adding anything. A `UnicodeEncodeError` must have been ruled out before."""
        return flat([one.ids for one in self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)])

    def encode_with_ranges(self, texts: list[str]) -> tuple[Ids, list[CharRanges]]:
        """Encode texts without adding anything, and find for each text where its tokens come from."""
        encodings = self._tokenizer.encode_batch(texts, add_special_tokens=False)
        ranges = []
        for one in encodings:
            pairs = np.fromiter(chain.from_iterable(one.offsets), dtype=np.int64, count=2 * len(one)).reshape(-1, 2)
            ranges.append(CharRanges(pairs[:, 0], pairs[:, 1]))
        return flat([one.ids for one in encodings]), ranges

    def encode_as_text(self, text: str) -> list[int]:
        """Encode a text in which nothing is a special or added token."""
        tokenizer = self._tokenizer
        if tokenizer.normalizer is not None:
            text = tokenizer.normalizer.normalize_str(text)
        pieces = [text]
        if tokenizer.pre_tokenizer is not None:
            pieces = [piece for piece, _ in tokenizer.pre_tokenizer.pre_tokenize_str(text)]
        return [token.id for piece in pieces for token in tokenizer.model.tokenize(piece)]


def _without_processor(tokenizer: LoadedTokenizer) -> Any:
    """Return the `tokenizers` tokenizer without its post-processor, whose tokens the encoder adds.

    Without a post-processor, offsets keep the space at a token's beginning. Shares the model with the loaded
    tokenizer, because loading a vocabulary of 128,000 tokens again takes 0.3 s.
    """
    from tokenizers import Tokenizer

    loaded = tokenizer.hf.backend_tokenizer
    bare = Tokenizer(loaded.model)
    for part in ("normalizer", "pre_tokenizer"):
        if getattr(loaded, part) is not None:
            setattr(bare, part, getattr(loaded, part))
    added = loaded.get_added_tokens_decoder()
    for _, token in sorted(added.items()):
        bare.add_special_tokens([token]) if token.special else bare.add_tokens([token])
    if bare.get_added_tokens_decoder() != added:  # Ids with gaps: only the file keeps them.
        bare = Tokenizer.from_str(tokenizer.backend_json)
        bare.post_processor = None
    return bare


class GigatokenBackend:
    """gigatoken for text on which both libraries agree, the reference for the rest.

    Raises:
        TokenizerError: gigatoken does not support this tokenizer.
    """

    name = "gigatoken"

    def __init__(self, tokenizer: LoadedTokenizer, reference: ReferenceBackend):
        if tokenizer.hf.split_special_tokens:
            raise TokenizerError(
                "gigatoken cannot split special tokens, as this tokenizer's config asks for; use --tokenizer-backend "
                "auto or tokenizers"
            )
        try:
            import gigatoken

            self._tokenizer = gigatoken.Tokenizer.from_json(tokenizer.backend_json)
        except Exception as error:
            reason = " ".join(str(error).split())[:200] or type(error).__name__
            raise TokenizerError(
                f"gigatoken cannot load this tokenizer ({reason}); use --tokenizer-backend auto or tokenizers"
            ) from None
        self._reference = reference
        self._cut = _word_cut(tokenizer.config)
        self._asks_unicode = asks_unicode(tokenizer.config)

    def encode(self, texts: list[str]) -> Ids:
        """Encode texts without adding anything, on one core.

        A `UnicodeEncodeError` must have been ruled out before.
        """
        # One call per text: a batch returns an awkward array, which takes 600 us to create.
        encode = self._tokenizer.backend.encode
        unsettled = []
        if self._asks_unicode:
            unsettled = [number for number, text in enumerate(texts) if not (text.isascii() or is_settled(text))]
        if not unsettled:
            return flat([encode(text) for text in texts])
        rows = {number: self._encode_unsettled(texts[number]) for number in unsettled}
        return flat([rows[number] if number in rows else encode(text) for number, text in enumerate(texts)])

    def _encode_unsettled(self, text: str) -> NDArray[np.uint32]:
        """Send only words with such code points, and their neighbours, to the reference, if the text can be cut."""
        cuts = [0, *(cut.end() for cut in self._cut.finditer(text))]
        borders = np.unique(np.array([cut for cut in cuts if cut < len(text)], dtype=np.int64))
        is_slow = np.zeros(len(borders), dtype=np.bool_)
        is_slow[np.searchsorted(borders, unsettled_places(text), side="right") - 1] = True
        firsts = np.flatnonzero(np.concatenate([[True], is_slow[1:] != is_slow[:-1]]))
        pieces = [text[start:stop] for start, stop in pairwise([*borders[firsts].tolist(), len(text)])]
        slow = self._reference.encode(pieces[0 if is_slow[0] else 1 :: 2])
        rows: list[Any] = [slow.row(number).view(np.uint32) for number in range(len(slow.offsets) - 1)]
        encode = self._tokenizer.backend.encode
        fast = [encode(piece) for piece in pieces[1 if is_slow[0] else 0 :: 2]]
        first, second = (rows, fast) if is_slow[0] else (fast, rows)
        return np.concatenate([row for pair in zip_longest(first, second) for row in pair if row is not None])


_CUT = r"\S\n(?=[A-Za-z])|(?= [A-Za-z])"
_CUT_BY_SPACES = r"\S\n(?=[A-Za-z]|  )|(?<=\S)(?= [A-Za-z])"
"""For tokenizers with added tokens of two or more spaces."""
_NEVER = re.compile("(?!)")


def _word_cut(config: dict[str, Any]) -> re.Pattern[str]:
    """Match places where a text can be cut without changing its ids.

    These are between a line feed that ends a line and a letter, before a space and a letter, and between a letter or
    digit and a sign other than an apostrophe; all of them ASCII. All splitting patterns of byte-level BPE that
    gigatoken knows end a word there, and NFC composes nothing across it.
    """
    if config["model"].get("byte_fallback") or '"add_prefix_space": true' in json.dumps(config["pre_tokenizer"]):
        return _NEVER
    tokens = config["added_tokens"]
    contents = [token["content"] for token in tokens if token["content"].strip(" ")]
    if any(token["lstrip"] or token["rstrip"] for token in tokens):
        return _NEVER
    if any(re.search("[\n ][A-Za-z]|\n | $", content) for content in contents):
        return _NEVER
    if len(contents) == len(tokens):
        cut = _CUT
    elif any(token["content"] == "  " for token in tokens):
        cut = _CUT_BY_SPACES
    else:
        return _NEVER
    inside = {sign for content in contents for sign in re.findall("(?<=[A-Za-z0-9]).", content)}
    signs = "".join(sign for sign in string.punctuation if sign != "'" and sign not in inside)
    return re.compile(f"{cut}|(?<=[A-Za-z0-9])(?=[{re.escape(signs)}])" if signs else cut)
