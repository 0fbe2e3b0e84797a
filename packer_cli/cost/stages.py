"""Stages of a pipeline: whole layers, the embedding before the first, the LM head and the loss after the last."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple


class Stage(NamedTuple):
    """Share of a model that a stage runs."""

    share: float
    """Share of the layers."""
    has_head: bool = True
    """Whether it runs the LM head."""


WHOLE = Stage(1.0)
"""The only stage, without a pipeline."""


@lru_cache(maxsize=256)
def stage_layers(num_layers: int, head_layers: float, num_stages: int) -> tuple[int, ...]:
    """Return the layers of each stage, so that the slowest takes least; at least one each. O(layers).

    The embedding takes no time. Of equal choices, the one with the most layers beside the head, so that the others
    have few; the first stages take what is left over.

    Args:
        head_layers: layers that take as long as the LM head.

    >>> stage_layers(32, 2.41, 4)
    (9, 9, 8, 6)
    >>> stage_layers(32, 0.0, 4)
    (8, 8, 8, 8)
    """
    if num_stages == 1:
        return (num_layers,)
    others = num_stages - 1

    def slowest(last: int) -> float:
        return max(math.ceil((num_layers - last) / others), last + head_layers)

    last = min(range(1, max(1, num_layers - others) + 1), key=lambda number: (slowest(number), -number))
    each, more = divmod(num_layers - last, others)
    return (*(each + (stage < more) for stage in range(others)), last)
