"""Plain twins of the GPU kernels that hybrid models need, under the names and arguments of their packages.

causal-conv1d 1.7, mamba-ssm 2.3 and flash-linear-attention 0.6. A state begins at zero at the first token of each
segment, which is all that these kernels make of `seq_idx` and `cu_seqlens`.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812

Tensor = torch.Tensor


def causal_conv1d_fn(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, seq_idx: Tensor | None = None, initial_states: Any = None,
    return_final_states: bool = False, final_states_out: Any = None, activation: str | None = None,
) -> Tensor:  # fmt: skip
    """x [b, dim, t], weight [dim, width], seq_idx int32 [b, t]."""
    assert initial_states is None
    assert not return_final_states
    if seq_idx is not None:
        assert (seq_idx.dtype, seq_idx.shape) == (torch.int32, (x.shape[0], x.shape[2]))
    width = weight.shape[1]
    out = torch.zeros_like(x) if bias is None else bias[:, None].expand_as(x)
    for back in range(width):
        seen = F.pad(x, (back, 0))[..., : x.shape[2]]
        if seq_idx is not None:
            seen = seen * (F.pad(seq_idx, (back, 0), value=-1)[:, None, : x.shape[2]] == seq_idx[:, None])
        out = out + weight[:, width - 1 - back, None] * seen
    return F.silu(out) if activation else out


def mamba_chunk_scan_combined(
    x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, chunk_size: int, D: Any = None, z: Any = None,  # noqa: N803
    dt_bias: Any = None, initial_states: Any = None, seq_idx: Tensor | None = None, cu_seqlens: Any = None,
    dt_softplus: bool = False, dt_limit: tuple[float, float] = (0.0, float("inf")),
    return_final_states: bool = False, return_varlen_states: bool = False,
) -> Tensor:  # fmt: skip
    """x [b, t, heads, dim], dt [b, t, heads], A [heads], B and C [b, t, groups, state], seq_idx int32 [b, t]."""
    assert z is None
    assert initial_states is None
    assert not return_final_states
    dt = dt if dt_bias is None else dt + dt_bias
    dt = (F.softplus(dt) if dt_softplus else dt).clamp(*dt_limit)
    B, C = (y.repeat_interleave(x.shape[2] // y.shape[2], dim=2) for y in (B, C))  # noqa: N806
    state = x.new_zeros(*x.shape[:1], *x.shape[2:], B.shape[3])
    out = []
    for t in range(x.shape[1]):
        if seq_idx is not None and t and bool((seq_idx[:, t] != seq_idx[:, t - 1]).any()):
            state = torch.zeros_like(state)
        new = (dt[:, t, :, None] * x[:, t])[..., None] * B[:, t, :, None]
        state = state * (dt[:, t] * A).exp()[..., None, None] + new
        out.append((state * C[:, t, :, None]).sum(-1))
    y = torch.stack(out, dim=1)
    return y if D is None else y + D[:, None] * x


def mamba_split_conv1d_scan_combined(
    zxbcdt: Tensor, conv1d_weight: Tensor, conv1d_bias: Any, dt_bias: Any, A: Tensor, D: Any,  # noqa: N803
    chunk_size: int, initial_states: Any = None, seq_idx: Tensor | None = None,
    dt_limit: tuple[float, float] = (0.0, float("inf")), return_final_states: bool = False, activation: str = "silu",
    rmsnorm_weight: Any = None, rmsnorm_eps: float = 1e-6, outproj_weight: Any = None, outproj_bias: Any = None,
    headdim: int | None = None, ngroups: int = 1, norm_before_gate: bool = True,
) -> Tensor:  # fmt: skip
    """The whole Mamba-2 layer after its first projection; what transformers calls when it trains."""
    heads, conv_dim = A.shape[0], conv1d_weight.shape[0]
    inner = heads * headdim
    gate, xbc, dt = zxbcdt.split([inner, conv_dim, heads], dim=-1)
    xbc = causal_conv1d_fn(xbc.transpose(1, 2), conv1d_weight, conv1d_bias, seq_idx, activation=activation)
    x, b, c = xbc.transpose(1, 2).split([inner, (conv_dim - inner) // 2, (conv_dim - inner) // 2], dim=-1)
    b, c = (y.unflatten(-1, (ngroups, -1)) for y in (b, c))
    y = mamba_chunk_scan_combined(
        x.unflatten(-1, (heads, -1)), dt, A, b, c, chunk_size, D, None, dt_bias, None, seq_idx, None, True, dt_limit
    )
    assert rmsnorm_weight is not None
    assert not norm_before_gate
    groups = (y.flatten(2) * F.silu(gate)).unflatten(-1, (ngroups, -1))  # the kernel normalizes each by itself
    y = (groups * torch.rsqrt(groups.pow(2).mean(-1, keepdim=True) + rmsnorm_eps)).flatten(2) * rmsnorm_weight
    return F.linear(y, outproj_weight, outproj_bias)


def chunk_gated_delta_rule(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, scale: float | None = None, initial_state: Any = None,
    output_final_state: bool = False, use_qk_l2norm_in_kernel: bool = False, cu_seqlens: Tensor | None = None,
) -> tuple[Tensor, None]:  # fmt: skip
    """q and k [1, t, heads, dim], v [1, t, value heads, dim], g and beta [1, t, value heads], cu_seqlens [n+1]."""
    assert initial_state is None
    assert not output_final_state
    q, k = (x.repeat_interleave(v.shape[2] // x.shape[2], dim=2).to(g.dtype) for x in (q, k))
    if use_qk_l2norm_in_kernel:
        q, k = (x * torch.rsqrt((x * x).sum(-1, keepdim=True) + 1e-6) for x in (q, k))
    q = q * (k.shape[-1] ** -0.5 if scale is None else scale)
    starts = {0} if cu_seqlens is None else set(cu_seqlens.tolist())
    state, out = g.new_zeros(0), []
    for t in range(v.shape[1]):
        if t in starts:
            state = g.new_zeros(*k.shape[2:], v.shape[3])
        state = state * g[0, t, :, None, None].exp()
        wrong = v[0, t] - (state * k[0, t, :, :, None]).sum(1)
        state = state + k[0, t, :, :, None] * (beta[0, t, :, None] * wrong)[:, None]
        out.append((state * q[0, t, :, :, None]).sum(1))
    return torch.stack(out)[None].to(v.dtype), None


PACKAGES = {
    "causal_conv1d": {"": [causal_conv1d_fn]},
    "mamba_ssm": {"ops.triton.ssd_combined": [mamba_chunk_scan_combined, mamba_split_conv1d_scan_combined]},
    "fla": {"ops.gated_delta_rule": [chunk_gated_delta_rule]},
}
"""Package -> module -> what it holds."""


@contextmanager
def modeling(name: str, with_kernels: bool) -> Iterator[ModuleType]:
    """transformers' module of a model, imported where the packages of the kernels are installed, or are not.

    It looks for them when it is imported, so it is a module of its own, and the one that others use stays.
    """
    before = dict(sys.modules)
    for package in PACKAGES:
        for found in [m for m in sys.modules if m == package or m.startswith(f"{package}.")]:
            del sys.modules[found]
        sys.modules[package] = None  # type: ignore[assignment]  # "not installed"
    if with_kernels:
        for package, modules in PACKAGES.items():
            for path, functions in modules.items():
                names = [package, *path.split(".")] if path else [package]
                chain = [ModuleType(".".join(names[: i + 1])) for i in range(len(names))]
                for outer, inner in pairwise(chain):
                    setattr(outer, inner.__name__.rpartition(".")[2], inner)
                for function in functions:
                    setattr(chain[-1], function.__name__, function)
                sys.modules |= {module.__name__: module for module in chain}
    full = f"transformers.models.{name}.modeling_{name}"
    sys.modules.pop(full, None)
    parent = importlib.import_module(f"transformers.models.{name}")
    held = parent.__dict__.get(f"modeling_{name}")
    try:
        yield importlib.import_module(full)
    finally:
        for module in [m for m in sys.modules if m == full or m.partition(".")[0] in PACKAGES]:
            del sys.modules[module]
        sys.modules |= {m: before[m] for m in before if m == full or m.partition(".")[0] in PACKAGES}
        if held is not None:
            parent.__dict__[f"modeling_{name}"] = held
