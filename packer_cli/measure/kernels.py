"""Attention kernels for packed rows, with one signature."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812

from packer_cli.errors import ConfigError
from packer_cli.loader.parallel import ulysses_attention


@dataclass(frozen=True)
class Segments:
    """Numbers of queries and keys of each sample of a row; the queries are at the end of their keys."""

    queries: tuple[int, ...]
    keys: tuple[int, ...]
    causal: bool
    cu_queries: torch.Tensor
    """int32 [n+1], on the device."""
    cu_keys: torch.Tensor

    @classmethod
    def of(cls, queries: tuple[int, ...], keys: tuple[int, ...], *, causal: bool, device: Any) -> Segments:
        """Segments of these lengths."""
        borders = [torch.tensor([0, *accumulate(x)], dtype=torch.int32, device=device) for x in (queries, keys)]
        return cls(queries, keys, causal, *borders)


Kernel = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, Segments], torch.Tensor]
"""(query [t, heads, dim], key and value [u, kv_heads, dim], segments) -> [t, heads, value dim]"""


def sdpa(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, segments: Segments) -> torch.Tensor:
    """One scaled_dot_product_attention a sample; any device."""
    parts = (
        x.transpose(0, 1).split(sizes, dim=1)
        for x, sizes in ((query, segments.queries), (key, segments.keys), (value, segments.keys))
    )
    outputs = [_sdpa(q, k, v, segments.causal) for q, k, v in zip(*parts, strict=True)]
    # Do not copy a single output: backward would keep the copy, which other kernels do not make.
    return (outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=1)).transpose(0, 1)


def _sdpa(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, causal: bool) -> torch.Tensor:
    """[heads, q, dim] of a sample. torch aligns `is_causal` with the first key, so fewer queries need a mask."""
    masked = causal and 1 < query.shape[1] < key.shape[1]
    return F.scaled_dot_product_attention(
        query[None], key[None], value[None], enable_gqa=True,
        is_causal=causal and query.shape[1] == key.shape[1],
        attn_mask=_last_queries(query.shape[1], key.shape[1], query.device) if masked else None,
    )[0]  # fmt: skip


@lru_cache(maxsize=1)
def _last_queries(queries: int, keys: int, device: torch.device) -> torch.Tensor:
    """bool [queries, keys]: what each of the last queries sees."""
    return torch.ones(queries, keys, dtype=torch.bool, device=device).tril_(keys - queries)


def _flash_attn() -> Kernel:
    from flash_attn import flash_attn_varlen_func

    def kernel(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, segments: Segments) -> torch.Tensor:
        return flash_attn_varlen_func(
            q=query, k=key, v=value, cu_seqlens_q=segments.cu_queries, cu_seqlens_k=segments.cu_keys,
            max_seqlen_q=max(segments.queries), max_seqlen_k=max(segments.keys), causal=segments.causal,
        )  # fmt: skip

    return kernel


def _torch_varlen() -> Kernel:
    from torch.nn.attention.varlen import varlen_attn

    known = inspect.signature(varlen_attn).parameters
    if "window_size" not in known:
        raise ImportError("torch.nn.attention.varlen of this torch is too old: 2.11 or newer is needed")

    def kernel(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, segments: Segments) -> torch.Tensor:
        more = {"enable_gqa": True} if "enable_gqa" in known else {}
        if not more and key.shape[1] < query.shape[1]:
            key, value = (x.repeat_interleave(query.shape[1] // x.shape[1], dim=1) for x in (key, value))
        return varlen_attn(
            query, key, value, segments.cu_queries, segments.cu_keys, max(segments.queries), max(segments.keys),
            window_size=(-1, 0) if segments.causal else (-1, -1), **more,
        )  # fmt: skip

    return kernel


def choose_kernel(name: str, device: torch.device) -> tuple[str, Kernel]:
    """The kernel with this name; `auto` is the first available of flash-attn, torch's varlen and SDPA.

    Raises:
        ConfigError: it is not available on this machine.
    """
    makers: dict[str, Callable[[], Kernel]] = {"flash-attn": _flash_attn, "torch-varlen": _torch_varlen}
    if name == "auto":
        names = [*makers] if device.type == "cuda" else []
    elif name == "sdpa":
        names = []
    elif device.type != "cuda":
        raise ConfigError(f"--attention {name} needs a GPU; on a CPU there is only sdpa")
    else:
        names = [name]
    for each in names:
        try:
            return each, makers[each]()
        except ImportError as error:
            if name != "auto":
                raise ConfigError(f"--attention {name}: {error}") from None
    return "sdpa", sdpa


class RowAttention:
    """Attention over the current row, within the SP group that shares it."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._segments: Segments | None = None
        self._group: dist.ProcessGroup | None = None

    def set(self, samples: tuple[int, ...], group: dist.ProcessGroup | None, device: torch.device) -> None:
        """Set the current row: the lengths of its samples, and the processes that share it."""
        self._segments = Segments.of(samples, samples, causal=True, device=device)
        self._group = group

    def __call__(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """[t, heads, dim] -> [t, heads, dim], for this rank's part of the row."""
        segments = self._segments
        assert segments is not None

        def whole_row(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, _: Any) -> torch.Tensor:
            return self._kernel(q, k, v, segments)

        return ulysses_attention(query, key, value, None, self._group, whole_row)


def split_evenly(length: int, num_samples: int) -> tuple[int, ...]:
    """Split a row into samples of equal length, as far as possible.

    >>> split_evenly(10, 4)
    (2, 3, 2, 3)
    """
    borders = [i * length // num_samples for i in range(num_samples + 1)]
    return tuple(stop - start for start, stop in pairwise(borders))
