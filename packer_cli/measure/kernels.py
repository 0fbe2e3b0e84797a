"""Attention kernels for packed rows, with one signature."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from itertools import accumulate, pairwise
from typing import Any, cast

import torch
import torch.distributed as dist

from packer_cli.cost.profile import PieceRow
from packer_cli.cost.shape import ModelShape
from packer_cli.errors import ConfigError
from packer_cli.loader.parallel import packed_attention, ulysses_attention
from packer_cli.measure.device import Device


class Segments:
    """Numbers of queries and keys of each sample of a row; the queries are at the end of their keys, and causal.

    Their borders, `cu_queries` and `cu_keys`, are int32 [n+1] on the device.
    """

    def __init__(self, queries: tuple[int, ...], keys: tuple[int, ...], device: Any) -> None:
        self.queries, self.keys = queries, keys
        self.cu_queries, self.cu_keys = (
            torch.tensor([0, *accumulate(x)], dtype=torch.int32, device=device) for x in (queries, keys)
        )


Kernel = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, Segments], torch.Tensor]
"""(query [t, heads, dim], key and value [u, kv_heads, dim], segments) -> [t, heads, value dim]"""


def sdpa(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, segments: Segments) -> torch.Tensor:
    """Attend as the loader does on any device, sample by sample."""
    # Borders in host memory: to read those of a GPU would wait for it.
    borders, of_keys = ([0, *accumulate(x)] for x in (segments.queries, segments.keys))
    return packed_attention(query, key, value, borders, cu_seqlens_k=of_keys)


def _flash_attn() -> Kernel:
    from flash_attn import flash_attn_varlen_func

    def kernel(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, segments: Segments) -> torch.Tensor:
        found: torch.Tensor = flash_attn_varlen_func(
            q=query, k=key, v=value, cu_seqlens_q=segments.cu_queries, cu_seqlens_k=segments.cu_keys,
            max_seqlen_q=max(segments.queries), max_seqlen_k=max(segments.keys), causal=True,
        )  # fmt: skip
        return found

    return kernel


def _torch_varlen() -> Kernel:
    from torch.nn.attention.varlen import varlen_attn

    known = inspect.signature(varlen_attn).parameters
    if "window_size" not in known:
        raise ImportError("torch.nn.attention.varlen of this torch is too old: 2.11 or newer is needed")

    def kernel(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, segments: Segments) -> torch.Tensor:
        more: dict[str, Any] = {"enable_gqa": True} if "enable_gqa" in known else {}
        if not more and key.shape[1] < query.shape[1]:
            key, value = (x.repeat_interleave(query.shape[1] // x.shape[1], dim=1) for x in (key, value))
        out = varlen_attn(
            query, key, value, segments.cu_queries, segments.cu_keys, max(segments.queries), max(segments.keys),
            window_size=(-1, 0), **more,
        )  # fmt: skip
        return cast("torch.Tensor", out)

    return kernel


def choose_kernel(name: str, device: torch.device) -> tuple[str, Kernel]:
    """Choose the kernel with this name; `auto` is the first available of flash-attn, torch's varlen and SDPA.

    Raises:
        ConfigError: it is not available on this machine.
    """
    makers: dict[str, Callable[[], Kernel]] = {"flash-attn": _flash_attn, "torch-varlen": _torch_varlen}
    if name in makers and device.type != "cuda":
        raise ConfigError(f"--attention {name} needs a GPU; on a CPU there is only sdpa")
    for each, make in makers.items():
        if device.type != "cuda" or name not in ("auto", each):
            continue
        try:
            return each, make()
        except ImportError as error:
            if name != "auto":
                raise ConfigError(f"--attention {name}: {error}; install it, or give --attention auto") from None
    return "sdpa", sdpa


class RowAttention:
    """Attention over the current row, within the SP group that shares it."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._segments: Segments | None = None
        self._group: dist.ProcessGroup | None = None

    def set(self, samples: tuple[int, ...], group: dist.ProcessGroup | None, device: torch.device) -> None:
        """Set the current row: the lengths of its samples, and the processes that share it."""
        self._segments = Segments(samples, samples, device)
        self._group = group

    def __call__(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """Attend for this rank's part of the row: [t, heads, dim] -> [t, heads, dim]."""
        return ulysses_attention(query, key, value, self._segments, self._group, self._kernel)


def split_evenly(length: int, num_samples: int) -> tuple[int, ...]:
    """Split a row into samples of equal length, as far as possible.

    >>> split_evenly(10, 4)
    (2, 3, 2, 3)
    """
    borders = [i * length // num_samples for i in range(num_samples + 1)]
    return tuple(stop - start for start, stop in pairwise(borders))


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
    """Measure the median time of forward and backward of a row of pieces, all together."""
    segments = Segments(queries, keys, device.device)
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

    return device.median_seconds(call, repeats=repeats)
