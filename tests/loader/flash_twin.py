"""transformers' flash attention with a plain twin of the kernel, on CPU, for any float."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers.modeling_flash_attention_utils as flash_utils
from transformers.integrations.flash_attention import flash_attention_forward
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from packer_cli.loader.parallel import packed_attention


def install_flash_twin(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Register attention "flash_twin"; the list gets the number of borders of each call of the kernel."""
    calls: list[int] = []

    def flash_attn_varlen_func(
        q: Any, k: Any, v: Any, cu_seqlens_q: Any, cu_seqlens_k: Any, max_seqlen_q: int, max_seqlen_k: int,
        dropout_p: float = 0.0, softmax_scale: float | None = None, causal: bool = False,
        window_size: tuple[int, int] = (-1, -1),
    ) -> torch.Tensor:  # fmt: skip
        assert causal
        assert cu_seqlens_q.dtype == cu_seqlens_k.dtype == torch.int32
        assert (max_seqlen_q, max_seqlen_k) == (int(cu_seqlens_q.diff().max()), int(cu_seqlens_k.diff().max()))
        assert (len(q), len(k)) == (int(cu_seqlens_q[-1]), int(cu_seqlens_k[-1]))
        calls.append(len(cu_seqlens_q))
        window = window_size[0] + 1 or None
        return packed_attention(q, k, v, cu_seqlens_q, softmax_scale, cu_seqlens_k, window=window)

    def flash_attn_func(
        q: Any, k: Any, v: Any, dropout_p: float = 0.0, softmax_scale: float | None = None, causal: bool = False
    ) -> torch.Tensor:
        assert causal
        rows = [packed_attention(*row, [0, q.shape[1]], softmax_scale) for row in zip(q, k, v, strict=True)]
        return torch.stack(rows)

    process = flash_utils._lazy_define_process_function(flash_attn_varlen_func)
    functions = (flash_attn_func, flash_attn_varlen_func, None, None, None)
    monkeypatch.setattr(flash_utils, "lazy_import_flash_attention", lambda *_, **__: (functions, (process, dict)))
    monkeypatch.setitem(ALL_ATTENTION_FUNCTIONS._global_mapping, "flash_twin", flash_attention_forward)
    return calls
