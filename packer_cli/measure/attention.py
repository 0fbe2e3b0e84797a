"""Measures the attention kernel for pieces of a sample: runs of queries at the end of their keys, as CP ranks hold."""

from __future__ import annotations

import torch

from packer_cli.cost.profile import PieceRow
from packer_cli.cost.shape import ModelShape
from packer_cli.measure.device import Device
from packer_cli.measure.kernels import Kernel, Segments

QUERY_LENGTHS = (1, 16, 64, 128, 256, 512, 1024, 4096)
"""Under 256, a GPU's tiles are not full (WLB-LLM, arXiv 2503.17924, section 5.2)."""
KEY_LENGTHS = (16, 64, 256, 1024, 8192, 65536)
"""And the longest row that is measured. With few keys, a piece costs what starting it costs."""

ROW_QUERIES = 4096
"""About how many queries to make per call, over several pieces, which a GPU runs in parallel."""
MOST_PIECES = 256
CPU_PIECES = 2
"""Most pieces per call on a CPU, which runs them one after another."""
MOST_KEYS = 2**18
"""Most keys per call: with 8 heads of 128, keys, values and their gradients take two gigabytes."""
LONG_CALL = 0.2
"""Seconds of a call after which no more queries are measured; the nearest sizes stand for them."""


def measure_attention(device: Device, kernel: Kernel, shape: ModelShape, longest: int, repeats: int) -> list[PieceRow]:
    """Measure rows of equal pieces, forward and backward, causal; seconds are per piece, of one layer.

    Pieces have 1 to 4096 queries, and no more than keys. Price: a few dozen calls for each number of keys.

    Args:
        longest: most keys of a piece.
    """
    most = MOST_PIECES if device.is_gpu else CPU_PIECES
    rows = []
    for keys in sorted({min(longest, length) for length in (*KEY_LENGTHS, longest)}):
        for queries in QUERY_LENGTHS:
            if queries > keys:
                break
            num = max(1, min(most, ROW_QUERIES // queries, MOST_KEYS // keys))
            seconds = piece_seconds(device, kernel, shape, (queries,) * num, (keys,) * num, repeats)
            rows.append(PieceRow(queries=queries, keys=keys, seconds=seconds / num))
            if seconds > LONG_CALL:
                break
    return rows


def piece_seconds(
    device: Device, kernel: Kernel, shape: ModelShape, queries: tuple[int, ...], keys: tuple[int, ...], repeats: int
) -> float:
    """Median time of forward and backward of a row of pieces, all together."""
    segments = Segments.of(queries, keys, causal=True, device=device.device)
    row = [
        torch.randn(
            sum(lengths), heads, dim, device=device.device, dtype=getattr(torch, shape.dtype), requires_grad=True
        )
        for lengths, heads, dim in (
            (queries, shape.num_heads, shape.head_dim),
            (keys, shape.num_kv_heads, shape.head_dim),
            (keys, shape.num_kv_heads, shape.value_head_dim or shape.head_dim),
        )
    ]
    query, key, value = row

    def call() -> None:
        output = kernel(query, key, value, segments)
        torch.autograd.grad(output, row, torch.ones_like(output))

    return device.median_seconds(call, warm_up=1, repeats=repeats)
