"""Measures the attention kernel for short and long runs of queries."""

from __future__ import annotations

import torch

from packer_cli.cost.profile import AttentionRow
from packer_cli.cost.shape import ModelShape
from packer_cli.measure.device import Device
from packer_cli.measure.kernels import Kernel, Segments

QUERY_LENGTHS = (16, 32, 64, 128, 256, 512, 1024, 4096)
"""Under 256, a GPU's tiles are not full (WLB-LLM, arXiv 2503.17924, section 5.2)."""

ROW_QUERIES = 4096
"""About how many queries to make per call, over several stretches, which a GPU runs in parallel."""

MOST_KEYS = 2**18
"""Most keys per call: with 8 heads of 128, keys and values take a gigabyte."""


def measure_attention(
    device: Device, kernel: Kernel, shape: ModelShape, key_lengths: tuple[int, ...], repeats: int
) -> list[AttentionRow]:
    """Measure rows of equal stretches of queries, each attending to all of its keys; seconds are per stretch.

    Stretches have 16 to 4096 queries, and no more than keys. Price: a few dozen calls for each key length.
    """
    rows = []
    for key_length in key_lengths:
        for query_length in QUERY_LENGTHS:
            if query_length > key_length:
                continue
            num = max(1, min(ROW_QUERIES // query_length, MOST_KEYS // key_length))
            segments = Segments.of(
                (query_length,) * num, (key_length,) * num, causal=False, device=device.device
            )  # fmt: skip
            query, key, value = (
                torch.randn(tokens * num, heads, dim, device=device.device, dtype=getattr(torch, shape.dtype))
                for tokens, heads, dim in (
                    (query_length, shape.num_heads, shape.head_dim),
                    (key_length, shape.num_kv_heads, shape.head_dim),
                    (key_length, shape.num_kv_heads, shape.value_head_dim or shape.head_dim),
                )
            )

            def call(query: torch.Tensor = query, key: torch.Tensor = key, value: torch.Tensor = value,
                     segments: Segments = segments) -> None:  # fmt: skip
                with torch.no_grad():
                    kernel(query, key, value, segments)

            seconds = device.median_seconds(call, warm_up=1, repeats=repeats)
            rows.append(AttentionRow(query_length=query_length, key_length=key_length, seconds=seconds / num))
    return rows
