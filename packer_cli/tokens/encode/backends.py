"""Texts -> ids: `tokenizers` (the reference, with offsets on request) and gigatoken (20-90 times as fast).

gigatoken adds no BOS or EOS and gives no offsets. Its ids are those of `tokenizers`, except on recent
Unicode code points (see `encode.unicode`); texts that contain any go to `tokenizers`.
"""

from __future__ import annotations

import math
from itertools import chain
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from packer_cli.errors import RunError, TokenizerError
from packer_cli.format.ragged import Lists, offsets_of
from packer_cli.tokens.encode.unicode import is_settled
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


_LATER_CHARS = 1 << 14
"""About how many chars of a part to compare after its first records."""
_LATER_EVERY = 256
"""About one in so many of these records is compared, chosen by `hash_line`."""


class Comparison:
    """Chooses the records of a part that a fast way and the reference both make: the first ones, and some others.

    Args:
        most: of the first records.
        most_chars: about how many chars of these.
    """

    def __init__(self, most: int, most_chars: float = math.inf):
        self._most, self._chars, self._later_chars = most, most_chars, _LATER_CHARS

    def takes(self, line: int, size: int) -> bool:
        """Whether to compare the record of this line, in so many chars."""
        if self._most > 0 and self._chars > 0:
            self._most -= 1
            self._chars -= size
            return True
        is_taken = hash_line(line) % _LATER_EVERY == 0 and self._later_chars > 0
        self._later_chars -= size if is_taken else 0
        return is_taken


def hash_line(line: int) -> int:
    """Hash a line number to a pseudo-random number."""
    return line * 2654435761 >> 8


CharRanges = tuple[NDArray[np.int64], NDArray[np.int64]]
"""The chars of its text that each of t tokens covers: first, and one past the last, int64[t] each. Tokens that share a
char all have its range."""


def flat(rows: list[Any]) -> Lists:
    """Concatenate rows of ids, int32; the rows are all arrays (int32 or uint32), or all lists of ints."""
    offsets = offsets_of(np.array([len(row) for row in rows], np.int64))
    if not rows:
        joined = np.zeros(0, dtype=np.int32)
    elif isinstance(rows[0], np.ndarray):
        joined = rows[0] if len(rows) == 1 else np.concatenate(rows)
    else:
        joined = np.fromiter(chain.from_iterable(rows), dtype=np.int32, count=int(offsets[-1]))
    return Lists(offsets, joined.view(np.int32))


class ReferenceBackend:
    """The `tokenizers` library. 4-5 MB/s on two cores."""

    name = "tokenizers"

    def __init__(self, tokenizer: LoadedTokenizer):
        from tokenizers import Tokenizer

        self._tokenizer: Any = Tokenizer.from_str(tokenizer.backend_json)
        # The encoder adds its tokens, and it would leave the space at a token's beginning out of offsets.
        self._tokenizer.post_processor = None
        self._tokenizer.encode_special_tokens = bool(tokenizer.hf.split_special_tokens)

    def encode(self, texts: list[str]) -> Lists:
        """Encode texts without adding anything. A `UnicodeEncodeError` must have been ruled out before."""
        return flat([one.ids for one in self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)])

    def encode_with_ranges(self, texts: list[str]) -> tuple[Lists, list[CharRanges]]:
        """Encode texts without adding anything, and find for each text where its tokens come from."""
        encodings = self._tokenizer.encode_batch(texts, add_special_tokens=False)
        ranges = []
        for one in encodings:
            pairs = np.fromiter(chain.from_iterable(one.offsets), dtype=np.int64, count=2 * len(one)).reshape(-1, 2)
            ranges.append((pairs[:, 0], pairs[:, 1]))
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

    @property
    def pieces(self) -> dict[int, bytes]:
        """The bytes of each token, in which those of U+2581 may stand for a space."""
        found: dict[int, bytes] = self._tokenizer.vocab
        return found

    def encode(self, texts: list[str]) -> Lists:
        """Encode texts without adding anything, on one core.

        A `UnicodeEncodeError` must have been ruled out before.
        """
        # One call per text: a batch returns an awkward array, which takes 600 us to create.
        encode = self._tokenizer.backend.encode
        unsettled = [number for number, text in enumerate(texts) if not (text.isascii() or is_settled(text))]
        slow = self._reference.encode([texts[number] for number in unsettled])
        rows = {number: slow.row(at).view(np.uint32) for at, number in enumerate(unsettled)}
        return flat([rows[number] if number in rows else encode(text) for number, text in enumerate(texts)])
