"""Makes the loss masks of a batch of texts from the bytes of their tokens, or from offsets if these are unknown."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from packer_cli.tokens.encode.byte_lengths import UNKNOWN_SPANS
from packer_cli.tokens.encode.masks import mark_spans, mask_by_offsets

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from packer_cli.tokens.encode.backends import CharRanges, Ids
    from packer_cli.tokens.encode.ready import Backends
    from packer_cli.tokens.encode.rows import Text

    Mask = NDArray[Any]
    """[t]: of 0 and 1, or the weight of each token's loss"""


class Masker:
    """Makes loss masks.

    Args:
        check: called with a text, its ids and the reference's ids whenever both are known.
    """

    def __init__(
        self,
        backends: Backends,
        check: Callable[[Text, NDArray[np.int32], NDArray[np.int32]], None],
    ):
        self._lengths = backends.lengths
        self._reference = backends.reference
        self._check = check

    @property
    def wants_ranges(self) -> bool:
        """Whether every text with spans needs offsets."""
        return not self._lengths.are_known

    def mask(self, texts: list[Text], ids: Ids, ranges: list[CharRanges] | None) -> Mask | None:
        """The mask of all texts, before special tokens are added; None trains on all tokens.

        Args:
            ranges: char ranges of each text's tokens, if known.
        """
        is_weighted = any(item.is_weighted for item in texts)
        if not is_weighted and all(item.spans is None for item in texts):
            return None
        loss_mask: Mask = np.zeros(len(ids.input_ids), dtype=np.float32 if is_weighted else np.int8)
        others = list(range(len(texts)))
        if ranges is None and self._lengths.are_known:
            loss_mask, exact = self._by_lengths(texts, ids, is_weighted=is_weighted)
            others = np.flatnonzero(~exact).tolist()
        self._by_ranges(texts, ids, [number for number in others if texts[number].spans], ranges, loss_mask)
        for number, item in enumerate(texts):
            if item.spans is None:
                loss_mask[ids.offsets[number] : ids.offsets[number + 1]] = item.end_weight
        return loss_mask

    def _by_lengths(self, texts: list[Text], ids: Ids, *, is_weighted: bool) -> tuple[Mask, NDArray[np.bool_]]:
        spans: list[tuple[int, int]] = []
        weights: list[float] = []
        counts, sizes = [], []
        locate = self._lengths.locate
        keeps_ascii = self._lengths.keep_ascii
        for _, text, wanted, is_chat, _, of_spans, _ in texts:
            if not wanted:
                size, found = UNKNOWN_SPANS
            elif keeps_ascii and text.isascii():
                size, found = len(text), wanted
            else:
                size, found = locate(text, wanted, whole_last_char=not is_chat)
            spans += found
            if is_weighted:
                weights += (of_spans or [1.0] * len(found)) if found else []
            counts.append(len(found))
            sizes.append(size)
        counted = np.array(counts, dtype=np.int64)
        # In half bytes, see `ByteLengths.of`. If the last char need not be whole, a range ends half a byte earlier.
        units = 2 * np.array(spans, dtype=np.int64).reshape(-1, 2)
        units[:, 1] -= np.repeat(np.array([item.is_chat for item in texts], dtype=np.int64), counted)
        return mark_spans(
            ids.offsets,
            self._lengths.of([item.text for item in texts], ids),
            2 * np.array(sizes, dtype=np.int64),
            np.concatenate([np.zeros(1, np.int64), np.cumsum(counted)]),
            units,
            np.array(weights, dtype=np.float32) if is_weighted else None,
        )

    def _by_ranges(
        self,
        texts: list[Text],
        ids: Ids,
        numbers: list[int],
        ranges: list[CharRanges] | None,
        loss_mask: Mask,
    ) -> None:
        if not numbers:
            return
        if ranges is None:
            expected, found = self._reference.encode_with_ranges([texts[number].text for number in numbers])
            for row, number in enumerate(numbers):
                self._check(texts[number], ids.row(number), expected.row(row))
        else:
            found = [ranges[number] for number in numbers]
        for number, (starts, ends) in zip(numbers, found, strict=True):
            item = texts[number]
            assert item.spans
            at = slice(ids.offsets[number], ids.offsets[number + 1])
            loss_mask[at] = mask_by_offsets(
                starts, ends, item.spans, whole_last_char=not item.is_chat, weights=item.weights
            )
