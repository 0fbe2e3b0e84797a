"""Token ids to text by runs: nothing lost, no character torn.

A token may hold a part of a character, and some decoders treat the first token unlike the others. So each run is
decoded together with the tokens before it, and a character belongs to the run that completes it.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer_cli.engine.progress import warn
from packer_cli.errors import ConfigError, TokenizerError
from packer_cli.format.manifest import Manifest
from packer_cli.tokens.tokenizer.loading import LoadedTokenizer

Decode = Callable[[list[int]], str]
"""Ids to text. It need not give the text of a list of ids as that of its halves, but nearly: what a token becomes may
depend on a few tokens around it."""

CONTEXT = 16
"""Tokens before a run that are decoded with it; a character has four bytes, so four tokens, at most."""

_TORN = "\ufffd"


@dataclass(frozen=True, kw_only=True)
class Run:
    """Tokens in a row that are all trained on, or all masked."""

    trained: bool
    weight: float | None = None
    """The weight of each token's loss, in a set with weights."""
    num_tokens: int
    text: str | None
    """Text of the tokens; None without the tokenizer."""
    input_ids: list[int]


def mask_borders(loss_mask: NDArray[Any]) -> list[int]:
    """Find the places at which the mask changes, with 0 and the end.

    >>> mask_borders(np.array([0, 0, 1, 0], dtype=np.int8))
    [0, 2, 3, 4]
    """
    return [0, *(np.flatnonzero(np.diff(loss_mask)) + 1).tolist(), len(loss_mask)]


def decode_parts(decode: Decode, ids: Sequence[int], borders: Sequence[int]) -> list[str]:
    """Decode the texts of `ids[borders[k]:borders[k + 1]]`; together they are the text of all. O(tokens + runs *
    CONTEXT).

    Tokens before the first border are no part, and may begin a character that the first part ends.
    """
    texts: list[str] = []
    for begin, end in itertools.pairwise(borders):
        context = max(0, begin - CONTEXT)
        before = decode(list(ids[context:begin])) if begin > context else ""
        text = decode(list(ids[context:end]))
        differ = (i for i, (one, other) in enumerate(zip(before, text, strict=False)) if one != other)
        common = next(differ, min(len(before), len(text)))
        _shorten_end(texts, len(before) - common)
        texts.append(text[common:])
    return texts


def _shorten_end(texts: list[str], num_chars: int) -> None:
    """Take back what the next tokens change."""
    for k in reversed(range(len(texts))):
        taken = min(num_chars, len(texts[k]))
        texts[k] = texts[k][: len(texts[k]) - taken]
        num_chars -= taken
        if not num_chars:
            return


def decode_runs(
    decode: Decode | None,
    ids: NDArray[Any],
    loss_mask: NDArray[Any],
    before: Sequence[int] = (),
    *,
    is_by_token: bool = False,
) -> list[Run]:
    """Decode these tokens (int32[t]) in runs of equal mask or weight ([t]).

    Args:
        decode: None leaves the texts out.
        before: the last tokens before them, which may begin a character that these end.
        is_by_token: whether runs are of one token, except for characters that several share.
    """
    numbers, first, changes = [*before, *ids.tolist()], len(before), mask_borders(loss_mask)
    borders = range(len(ids) + 1) if is_by_token else changes
    texts = decode_parts(decode, numbers, [first + border for border in borders]) if decode else itertools.repeat(None)
    runs: list[Run] = []
    begin, ends = 0, {*changes}
    for end, text in zip(borders[1:], texts, strict=False):
        # No text yet: the token only begins a character, which the next ones complete.
        if text or end in ends:
            weight, own = loss_mask[begin], numbers[first + begin : first + end]
            runs.append(
                Run(
                    trained=bool(weight > 0),
                    weight=float(weight) if weight.dtype == np.float32 else None,
                    num_tokens=len(own),
                    text=text,
                    input_ids=own,
                )
            )
            begin = end
    return runs


def shorten(decode: Decode, ids: NDArray[np.int32], max_chars: int | None) -> tuple[int, int]:
    """Find (head, tail) to show `ids[:head]` and `ids[tail:]`, about `max_chars` characters; equal where all fit, or
    None."""
    numbers = ids.tolist()
    num = len(numbers)
    if max_chars is None or len(decode(numbers)) <= max_chars:
        return num, num
    half = max_chars // 2
    head = _most(lambda k: len(decode(numbers[:k])) <= half, num)
    tail = num - _most(lambda k: len(decode(numbers[num - k :])) <= max_chars - half, num)
    for _ in range(3):  # Not within a character.
        head -= head > 0 and decode(numbers[:head]).endswith(_TORN)
        tail += tail < num and decode(numbers[tail:]).startswith(_TORN)
    return (head, tail) if head < tail else (num, num)


def _most(fits: Callable[[int], bool], num: int) -> int:
    """Find the greatest number up to `num` that fits, where all smaller numbers fit, too."""
    return bisect_left(range(1, num + 1), True, key=lambda number: not fits(number))


def load_decoder(manifest: Manifest, given: str | None) -> Decode | None:
    """Load the tokenizer that the user named, else the one that the set was made with, if it is still there.

    Without one, return None, with a warning; warn of one that is not quite the set's, too.

    Price: importing transformers, a second or so.

    Raises:
        TokenizerError: the one that the user named cannot be loaded.
        ConfigError: it has another vocabulary.
    """
    name, wanted = given if given is not None else manifest.tokenizer.name, manifest.tokenizer
    try:
        if name is None:
            raise ConfigError("the set does not name its tokenizer; give --tokenizer PATH")
        loaded = LoadedTokenizer(name, eos_token=manifest.config.tokens.eos_token)
        if (template := manifest.config.tokens.chat_template) is not None:
            loaded.chat_template, loaded.tool_template = template, None
        found = loaded.describe()
        if found.vocab_size != wanted.vocab_size:
            remedy = "give --tokenizer PATH" if given is None else "name the one that the set was made with"
            raise ConfigError(
                f"tokenizer {name!r} has {found.vocab_size:,} token ids and the set's has "
                f"{wanted.vocab_size:,}, so it is another one; {remedy}"
            )
    except (ConfigError, TokenizerError) as error:
        if given is not None:
            raise
        why = f"the set's tokenizer cannot be loaded ({error}); give --tokenizer PATH if it has moved"
        warn(f"token ids are shown instead of text: {why if isinstance(error, TokenizerError) else error}")
        return None
    if found.fingerprint != wanted.fingerprint:
        is_template = found.chat_template_fingerprint != wanted.chat_template_fingerprint
        what = "has another chat template than" if is_template else "is not, or no longer, quite"
        warn(
            f"tokenizer {name!r} {what} the one that the set was made with: the text may differ from what was encoded"
        )
    from tokenizers import Tokenizer

    return partial(Tokenizer.from_str(loaded.backend_json).decode, skip_special_tokens=False)


def decode_ids(ids: list[int]) -> str:
    """Write ids as they are, for a set without a tokenizer.

    >>> decode_ids([1, 22])
    '1 22 '
    """
    return "".join(f"{number} " for number in ids)
