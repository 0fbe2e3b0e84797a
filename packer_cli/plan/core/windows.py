"""Windows that grow: in the first steps, attention sees only part of a sample.

A window of w tokens cuts each sample, from its first token on, into segments of w tokens: attention and positions
restart in each, labels stay. The rows and the tokens of a step are the same; only attention costs less. SkyLadder
(arXiv 2503.15450) lengthens the window by the same number of tokens in each step; GrowLength (arXiv 2310.00576)
doubles it at equal intervals. Only the first epoch has them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from packer_cli.plan.core.types import Int32Array, Int64Array
from packer_cli.sizes import parse_tokens

Growth = Literal["linear", "doubling"]


@dataclass(frozen=True, kw_only=True)
class Windows:
    """The window of each step, until samples are whole."""

    growth: Growth
    start: int
    """Tokens of the first window."""
    full: int
    """Tokens that no sample exceeds."""
    num_steps: int
    """Steps until samples are whole."""
    first_step: int = 0
    """Steps of the epoch that came before, on another number of GPUs."""

    def of_steps(self, num_steps: int) -> Int32Array:
        """Window of each step (int32[num_steps]); 0 for whole samples.

        >>> Windows(growth="linear", start=100, full=200, num_steps=4).of_steps(6).tolist()
        [100, 125, 150, 175, 0, 0]
        >>> Windows(growth="doubling", start=64, full=256, num_steps=4).of_steps(6).tolist()
        [64, 64, 128, 128, 0, 0]
        """
        step = np.arange(self.first_step, self.first_step + num_steps)
        if self.growth == "linear":
            window = self.start + (self.full - self.start) * step // self.num_steps
        else:
            num_doublings = max(1, (-(-self.full // self.start) - 1).bit_length())
            window = self.start << np.minimum(step * num_doublings // self.num_steps, num_doublings)
        return np.where((step < self.num_steps) & (window < self.full), window, 0).astype(np.int32)


CURRICULA: Mapping[str, tuple[Growth, int]] = {"skyladder": ("linear", 32), "growlength": ("doubling", 128)}
"""How windows grow, and the first one's default tokens."""
SHORT_FIRST = "short"
"""The curriculum without windows."""


def parse_curriculum(text: str, full: int, num_steps: int) -> Windows | None:
    """Read `short`, `skyladder[:START]` or `growlength[:START]`; None for the first, which has no windows.

    Args:
        full: tokens that no sample exceeds.
        num_steps: steps of the curriculum.

    Raises:
        ValueError: it is none of these, its window is too short or too long, or there are no steps for it.
    """
    name, colon, start = text.partition(":")
    if text == SHORT_FIRST:
        return None
    if name not in CURRICULA:
        forms = ", ".join(f"{each}[:START]" for each in CURRICULA)
        raise ValueError(f"unknown curriculum {text!r}; known: {SHORT_FIRST}, {forms}")
    growth, first = CURRICULA[name]
    if colon:
        try:
            first = parse_tokens(start)
        except ValueError as error:
            raise ValueError(f"curriculum {text!r}: {error}") from None
    if full < 2:
        raise ValueError(f"curriculum {name!r} needs a capacity of at least 2 tokens, got {full}")
    if not 1 <= first < full:
        raise ValueError(
            f"curriculum {name!r} begins with a window of {first} tokens, which must be at least 1 and below the "
            f"longest capacity, {full}; give another START, as in {name}:{min(64, full // 2)}"
        )
    if not num_steps:
        raise ValueError(f"curriculum {name!r} needs --curriculum-steps, the number of steps until samples are whole")
    return Windows(growth=growth, start=first, full=full, num_steps=num_steps)


def windowed_work(lengths: NDArray[np.integer], window: Int32Array | int) -> Int64Array:
    """Attention work (int64[m]) of samples (int[m]) under a window (int or int32[m]; 0: whole samples).

    >>> windowed_work(np.array([5, 2], dtype=np.int32), 2).tolist()
    [9, 4]
    """
    length = lengths.astype(np.int64)
    size = np.where(np.asarray(window) > 0, window, np.maximum(length, 1)).astype(np.int64)
    return length // size * size**2 + (length % size) ** 2
