"""Functions of logits, a chunk of these at a time, so that all of them are never in memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

CHUNK = 2**25
"""Logits that are in memory at once."""


def in_chunks(function: Callable[..., Any], vocabulary: int, *tensors: torch.Tensor | None) -> list[Any]:
    """List what a function of logits returns for the rows of tensors, `CHUNK` logits at a time.

    The backward pass runs the function again. Of no rows, there is one result.
    """
    size = max(1, CHUNK // vocabulary)
    length = next(len(tensor) for tensor in tensors if tensor is not None)
    parts = (slice(begin, begin + size) for begin in range(0, max(1, length), size))
    return [
        checkpoint(function, *(None if x is None else x[part] for x in tensors), use_reentrant=False) for part in parts
    ]
