"""The encoded samples that `tokens/` passes on."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from packer_cli.corpus.types import RecordSchema, Reject


@dataclass(frozen=True, kw_only=True)
class EncodedBatch:
    """The samples of some records, in flat arrays: n samples, t tokens.

    Every sample has at least one token.
    """

    offsets: NDArray[np.int64]
    """int64[n+1]: sample i is `input_ids[offsets[i]:offsets[i+1]]`."""
    input_ids: NDArray[Any]
    """int32[t], or uint16[t] where all ids were given and the vocabulary fits"""
    loss_mask: NDArray[Any] | None
    """int8[t]: 1 for tokens that are trained on, or float32[t]: the weight of each one's loss, 0 for none; None: all
    are trained on, with weight 1. The first token of a sample may be 1 here;
    it never carries a loss, since nothing predicts it, and the token store has none there."""
    lines: NDArray[np.int64]
    """int64[n]: line of each sample's record in its file."""
    rejects: list[Reject]
    """Records that gave no sample: those that could not be read, or encoded (a template that raises, an empty result);
    in the order of lines."""
    num_with_special: int
    """Records whose own contents hold the text of a special token."""
    is_open: NDArray[np.bool_]
    """bool[n]: whether the last token, blanks aside, is neither EOS nor a special token that the chat template
    writes."""
    kinds: dict[int, RecordSchema] = field(default_factory=dict)
    """Of the documents, by line; all other samples were given as tokens."""
