"""Packed rows on the attention kernels of a GPU, compared with samples one by one in float64 on the CPU."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import transformers.modeling_flash_attention_utils as flash_utils  # noqa: E402
from torch.nn.attention.flex_attention import flex_attention  # noqa: E402
from transformers import Gemma2Config, LlamaConfig, MistralConfig, Qwen3Config  # noqa: E402

from packer_cli.loader.adapters import causal_lm  # noqa: E402
from packer_cli.loader.adapters.causal_lm import run_packed_rows  # noqa: E402
from packer_cli.loader.adapters.packed_row import finished_logits  # noqa: E402
from packer_cli.loader.adapters.tree_attention import set_tree_attention, tree_inputs  # noqa: E402
from packer_cli.loader.formats.flex import document_mask  # noqa: E402
from packer_cli.loader.losses import branch_logps, token_losses  # noqa: E402
from tests.loader.small_rows import VOCABULARY, gradients, make, make_batch, one_by_one, run  # noqa: E402
from tests.loader.trees import batch_of  # noqa: E402
from tests.naive.trees import Branch, pack_of  # noqa: E402

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

GPU = torch.device("cuda")
SIZES = (130, 700, 1, 257, 64, 300)
"""Blocks of FlexAttention and tiles of FlashAttention are of 128 tokens."""
SHAPE = {"hidden_size": 256, "head_dim": 64, "initializer_range": 0.06}
FAMILIES = {
    "llama": (LlamaConfig, {}, {"sdpa", "flex_attention", "flash_attention_2"}),
    "qwen3": (Qwen3Config, {}, {"sdpa", "flex_attention", "flash_attention_2"}),
    "sliding window": (MistralConfig, {"sliding_window": 100}, {"sdpa", "flex_attention", "flash_attention_2"}),
    "soft cap": (Gemma2Config, {"attn_logit_softcapping": 2.0, "sliding_window": 100}, {"flex_attention"}),
}
"""Config, options, and the kernels that can run them."""
CASES = [(family, kernel) for family, (_, _, kernels) in FAMILIES.items() for kernel in sorted(kernels)]


def varlen(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, softmax_scale=None, causal=False,
           dropout_p=0.0, window_size=(-1, -1)):  # fmt: skip
    """`flash_attn_varlen_func` as PyTorch brings it: FlashAttention 2's kernel."""
    attention = pytest.importorskip("torch.nn.attention.varlen").varlen_attn
    assert causal
    assert not dropout_p
    left = window_size[0]
    times = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(times, dim=1) for x in (k, v))
    return attention(
        q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, scale=softmax_scale, window_size=(left, 0)
    )


@pytest.fixture
def flash(monkeypatch):
    """FlashAttention 2 in transformers' own path, by PyTorch's build of the kernel."""
    functions = (None, varlen, None, None, None)
    process = flash_utils._lazy_define_process_function(varlen)
    monkeypatch.setattr(flash_utils, "lazy_import_flash_attention", lambda *_, **__: (functions, (process, dict)))


def on_gpu(batch):
    return {name: value.to(GPU) if torch.is_tensor(value) else value for name, value in batch.items()}


def made(family, attention="eager"):
    config, options, _ = FAMILIES[family]
    return make(config, attention, **SHAPE, **options)


def distance(found, wanted):
    """Of all gradients from those in float64, in units of their norm."""
    difference = sum(float((found[name].double().cpu() - wanted[name]).norm() ** 2) for name in wanted)
    return (difference / sum(float(each.norm() ** 2) for each in wanted.values())) ** 0.5


def packed_gradients(family, kernel, dtype):
    model = made(family, "sdpa" if kernel == "flash_attention_2" else kernel).to(GPU, dtype)
    if kernel == "flash_attention_2":
        model.config._attn_implementation = kernel
    run_packed_rows(model)
    loss = run(model, on_gpu(make_batch(SIZES)), device=GPU)
    return loss.item(), gradients(model, loss)


@pytest.mark.parametrize(("family", "kernel"), CASES)
def test_a_row_in_bfloat16_is_as_near_as_its_samples_one_by_one(flash, family, kernel):
    batch = make_batch(SIZES)
    model = made(family)
    right = one_by_one(model, batch)
    wanted = gradients(model, right)
    model = made(family).to(GPU, torch.bfloat16)
    rounded = distance(gradients(model, one_by_one(model, on_gpu(batch))), wanted)
    model = made(family)
    merged = batch | {"cu_seq_lens_q": torch.tensor([0, sum(SIZES)])}
    apart = distance(gradients(model, one_by_one(model, merged)), wanted)
    loss, found = packed_gradients(family, kernel, torch.bfloat16)
    off = distance(found, wanted)
    print(f"{family}, {kernel}, bfloat16: off by {off:.2%}, one by one {rounded:.2%}, merged {apart:.1%}")
    assert loss == pytest.approx(right.item(), rel=2e-3)
    assert off < 1.5 * rounded
    assert apart > 5 * rounded


@pytest.mark.parametrize(("family", "kernel"), [(f, k) for f, k in CASES if k != "flash_attention_2"])
def test_a_row_in_float32_is_its_samples_one_by_one(family, kernel):
    model, batch = made(family), make_batch(SIZES)
    right = one_by_one(model, batch)
    wanted = gradients(model, right)
    loss, found = packed_gradients(family, kernel, torch.float32)
    off = distance(found, wanted)
    print(f"{family}, {kernel}, float32: off by {off:.1e}")
    assert loss == pytest.approx(right.item(), rel=1e-5)
    assert off < 1e-4


@pytest.mark.parametrize(("family", "kernel"), CASES)
def test_a_tree_is_its_branches_one_by_one(flash, family, kernel):
    ids = torch.randint(0, VOCABULARY, (3, 400), generator=torch.Generator().manual_seed(0)).tolist()
    pairs = [
        [
            Branch([*ids[0][:size], *own[:left]], [0] * size + [1] * left)
            for own, left in zip(ids[1:], lefts, strict=True)
        ]
        for size, lefts in ((300, (200, 130)), (40, (1, 250)))
    ]
    model = made(family)
    logits = [
        model(input_ids=torch.tensor([each.tokens]), use_cache=False).logits[0] for pair in pairs for each in pair
    ]
    labels = [torch.tensor([*(t if w else -100 for t, w in zip(*each, strict=True)), -100])[1:] for pair in pairs
              for each in pair]  # fmt: skip
    right = torch.stack([token_losses(*given).sum() for given in zip(logits, labels, strict=True)])
    wanted = gradients(model, (right * torch.arange(1, 5)).sum())
    dtype = torch.bfloat16 if kernel == "flash_attention_2" else torch.float32
    model = made(family, "sdpa" if kernel == "flash_attention_2" else kernel).to(GPU, dtype)
    model.config._attn_implementation = kernel
    set_tree_attention(model)
    batch = batch_of(
        pack_of(pairs), "tree-flex" if kernel == "flex_attention" else "tree", pad_to_multiple_of=64, pad_token_id=0
    )
    hidden = model.get_decoder()(**tree_inputs(batch, GPU)).last_hidden_state
    logps = branch_logps(hidden, lambda tokens: finished_logits(model.lm_head(tokens), model.config), batch)
    off = distance(gradients(model, -(logps * torch.arange(1, 5, device=GPU)).sum()), wanted)
    print(f"{family}, {kernel}, {dtype}: a tree is off by {off:.1e}")
    torch.testing.assert_close(
        -logps.double().cpu(), right.detach(), rtol=1e-2 if dtype == torch.bfloat16 else 1e-4, atol=0
    )
    assert off < (0.05 if dtype == torch.bfloat16 else 1e-4)


def test_a_document_mask_is_that_of_plain_attention():
    """FlexAttention as users compile it, with the mask that the loader makes."""
    borders, (heads, dim) = torch.tensor([0, *torch.tensor(SIZES).cumsum(0).tolist()]), (4, 64)
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, heads, int(borders[-1]), dim, device=GPU) for _ in range(3))
    found = torch.compile(flex_attention)(q, k, v, block_mask=document_mask(borders, GPU))
    rows = [
        torch.nn.functional.scaled_dot_product_attention(*parts, is_causal=True)
        for parts in zip(*(x.split(SIZES, dim=2) for x in (q, k, v)), strict=True)
    ]
    torch.testing.assert_close(found, torch.cat(rows, dim=2), rtol=1e-3, atol=1e-3)


def test_every_kernel_of_packed_rows_runs_here():
    kernels = {kernel for _, kernel in CASES}
    assert kernels == {row for row in causal_lm._KERNELS if not row.endswith(("_3", "_4"))} - {"eager"}
