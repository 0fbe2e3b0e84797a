"""Attention of a tree, and models that run one, against the branches one by one."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import Gemma2Config, LlamaConfig, LlamaForCausalLM, LlamaForSequenceClassification, MistralConfig
from transformers.integrations import flex_attention

from packer_cli.errors import ConfigError
from packer_cli.loader import losses
from packer_cli.loader.adapters import causal_lm
from packer_cli.loader.adapters.causal_lm import run_packed_rows
from packer_cli.loader.adapters.packed_row import PackedRow
from packer_cli.loader.adapters.tree_attention import (
    BranchLogps,
    BranchRewards,
    check_tree,
    set_tree_attention,
    tree_inputs,
)
from packer_cli.loader.losses import batch_losses, branch_logps, sample_mean, stable_loss, token_losses
from packer_cli.loader.parallel import attention as reference
from packer_cli.loader.parallel import packed_attention
from tests.loader.flash_twin import install_flash_twin
from tests.loader.llama import closeness, gradients, tiny_llama, with_rewards
from tests.loader.small_rows import CPU, make
from tests.loader.trees import batch_of, items
from tests.naive.trees import Branch, pack_of, plant

EXACT = 1e-10


def one_by_one(places: list[list[int]], query: Any, key: Any, value: Any, window: int | None) -> list[torch.Tensor]:
    """The attention of each branch alone, by the definition: scores, mask, softmax."""
    found = []
    for branch in places:
        q, k, v = (x[branch].transpose(0, 1) for x in (query, key, value))
        k, v = (x.repeat_interleave(q.shape[0] // k.shape[0], 0) for x in (k, v))
        far = torch.arange(len(branch))[:, None] - torch.arange(len(branch))
        scores = (q @ k.transpose(1, 2)) * q.shape[-1] ** -0.5
        sees = (far >= 0) & (far < (window or len(branch)))
        found.append((scores.masked_fill(~sees, -torch.inf).softmax(-1) @ v).transpose(0, 1))
    return found


@settings(max_examples=60, deadline=None)
@given(items(), st.one_of(st.none(), st.integers(1, 6)), st.sampled_from([1, 3, 1024]))
def test_a_trees_attention_is_that_of_its_branches(
    trees: list[list[Branch]], window: int | None, most_queries: int
) -> None:
    batch, row = batch_of(pack_of(trees)), plant(trees)
    length = len(row.input_ids)
    generator = torch.Generator().manual_seed(length)
    tensors = [
        torch.randn(length, heads, 8, dtype=torch.float64, generator=generator, requires_grad=True)
        for heads in (4, 2, 2)
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reference, "_MASKED_QUERIES", most_queries)
        found = packed_attention(
            *tensors, batch["tree_cu_seqlens_q"], None, batch["tree_cu_seqlens_k"], batch["tree_kv_index"], window
        )
    wanted = one_by_one(row.places, *tensors, window)
    targets = [torch.randn(x.shape, dtype=torch.float64, generator=generator) for x in wanted]
    for places, each in zip(row.places, wanted, strict=True):
        torch.testing.assert_close(found[places], each, rtol=EXACT, atol=EXACT)
    sums = [
        sum((x * target).sum() for x, target in zip(outputs, targets, strict=True))
        for outputs in ([found[places] for places in row.places], wanted)
    ]
    for one, other in zip(*(torch.autograd.grad(loss, tensors, retain_graph=True) for loss in sums), strict=True):
        torch.testing.assert_close(one, other, rtol=EXACT, atol=EXACT)


def test_samples_are_trees_of_one_segment() -> None:
    """The same function, the same kernels: document masks are the special case."""
    samples = [[Branch([*range(n)], [0] * n)] for n in (5, 1, 9)]
    batch = batch_of(pack_of(samples))
    q, k, v = torch.randn(3, 15, 4, 8, dtype=torch.float64)
    borders, keys = batch["tree_cu_seqlens_q"], batch["tree_cu_seqlens_k"]
    assert borders.tolist() == batch["cu_seqlens"].tolist() == keys.tolist() == [0, 5, 6, 15]
    found = packed_attention(q, k, v, borders, cu_seqlens_k=keys, kv_index=batch["tree_kv_index"])
    assert torch.equal(found, packed_attention(q, k, v, batch["cu_seqlens"]))


def test_no_score_matrix_of_the_row_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """64 answers under one prompt: no mask is larger than an answer times its path."""
    prompt = [*range(300)]
    group = [[Branch([*prompt, 500 + i, *range(40)], [0] * 341) for i in range(64)]]
    batch, masks = batch_of(pack_of(group)), []
    plain = F.scaled_dot_product_attention

    def watched(*tensors: torch.Tensor, attn_mask: Any, **others: Any) -> torch.Tensor:
        masks.append(attn_mask)
        return plain(*tensors, attn_mask=attn_mask, **others)

    monkeypatch.setattr(F, "scaled_dot_product_attention", watched)
    length = batch["input_ids"].shape[1]
    x = torch.randn(length, 1, 8)
    borders = [batch[f"tree_cu_seqlens_{kind}"].tolist() for kind in "qk"]
    packed_attention(x, x, x, borders[0], None, borders[1], batch["tree_kv_index"])
    assert masks[0] is None
    assert {mask.shape for mask in masks[1:]} == {(42, 341)}
    assert length == 299 + 64 * 42


def hidden_of(model: Any, batch: Any) -> torch.Tensor:
    return model.get_decoder()(**tree_inputs(batch, CPU)).last_hidden_state


def draw_pairs(seed: int, num_pairs: int, prefix: int | None = None) -> list[list[Branch]]:
    """Pairs whose samples agree for `prefix` tokens, or for any number of them."""
    generator = torch.Generator().manual_seed(seed)
    pairs = []
    for _ in range(num_pairs):
        sizes = torch.randint(2, 9, (3,), generator=generator).tolist()
        shared = sizes[0] if prefix is None else prefix
        prompt, *rest = (torch.randint(0, 1000, (n,), generator=generator).tolist() for n in (shared, *sizes[1:]))
        if rest[0][0] == rest[1][0]:
            rest[0][0] += 1
        pairs.append(
            [
                Branch([*prompt, *own], [0.0] * max(1, shared) + [1.0] * (shared + len(own) - max(1, shared)))
                for own in rest
            ]
        )
    return pairs


def logps_alone(model: Any, branch: Branch) -> torch.Tensor:
    labels = torch.tensor([t if w else -100 for t, w in zip(branch.tokens, branch.weights, strict=True)])
    logits = model(input_ids=torch.tensor([branch.tokens])).logits[0, :-1]
    return -token_losses(logits, labels[1:]).sum()


def preference(logps: torch.Tensor, counts: torch.Tensor, loss: str) -> torch.Tensor:
    """[2B] in pairs -> the sum of the losses, against a reference of 0.1 a token."""
    if loss == "ipo":
        ratios = (logps / counts + 0.1)[0::2] - (logps / counts + 0.1)[1::2]
        return ((ratios - 1 / (2 * 0.3)) ** 2).sum()
    ratios = (logps + 0.1 * counts)[0::2] - (logps + 0.1 * counts)[1::2]
    return -F.logsigmoid(0.3 * ratios).sum()


@pytest.mark.parametrize("loss", ["sigmoid", "ipo"])
@pytest.mark.parametrize("prefix", [0, 1, 2, 7, None])
def test_preferences_train_as_samples_one_by_one(loss: str, prefix: int | None) -> None:
    pairs, model = draw_pairs(3, 4, prefix), tiny_llama()
    counts = torch.tensor([sum(branch.weights) for pair in pairs for branch in pair])
    alone = preference(torch.stack([logps_alone(model, branch) for pair in pairs for branch in pair]), counts, loss)
    alone.backward()
    wanted = gradients(model)
    set_tree_attention(model)
    batch = batch_of(pack_of(pairs), pad_to_multiple_of=16)
    logps = branch_logps(hidden_of(model, batch), model.lm_head, batch)
    found = preference(logps, batch["sample_num_loss_tokens"], loss)
    found.backward()
    assert found.item() == pytest.approx(alone.item(), rel=1e-9)
    assert closeness(gradients(model), wanted) < 1e-6


def test_the_output_layer_runs_over_loss_terms_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    model, batch = tiny_llama(), batch_of(pack_of(draw_pairs(3, 4)))
    set_tree_attention(model)
    hidden = hidden_of(model, batch).detach().requires_grad_()
    whole = branch_logps(hidden, model.lm_head, batch)
    (wanted,) = torch.autograd.grad(whole.sum(), hidden)
    sizes: list[int] = []

    def head(tokens: torch.Tensor) -> torch.Tensor:
        sizes.append(len(tokens))
        return model.lm_head(tokens)

    monkeypatch.setattr(losses, "CHUNK", 3 * 1000 + 1)
    chunked = branch_logps(hidden, head, batch)
    num_terms = len(batch["token_index"])
    assert max(sizes) == 3 < num_terms < batch["input_ids"].numel()
    assert sum(sizes) == num_terms
    torch.testing.assert_close(chunked, whole)
    torch.testing.assert_close(torch.autograd.grad(chunked.sum(), hidden)[0], wanted)
    assert sum(sizes) == 2 * num_terms  # Logits are not kept for the backward pass.


def test_rewards_train_as_samples_one_by_one() -> None:
    """Bradley-Terry: the reward is made of the last token of each sample."""
    pairs, model = draw_pairs(5, 4), with_rewards(tiny_llama())
    samples = [torch.tensor([branch.tokens]) for pair in pairs for branch in pair]
    rewards = torch.cat([model.score(model.model(input_ids=ids).last_hidden_state[0, -1]) for ids in samples])
    alone = -F.logsigmoid(rewards[0::2] - rewards[1::2]).sum()
    alone.backward()
    wanted = gradients(model)
    set_tree_attention(model)
    batch = batch_of(pack_of(pairs))
    rewards = model.score(hidden_of(model, batch)[0, batch["last_index"]])[:, 0]
    found = -F.logsigmoid(rewards[0::2] - rewards[1::2]).sum()
    found.backward()
    assert found.item() == pytest.approx(alone.item(), rel=1e-9)
    assert closeness(gradients(model), wanted) < 1e-6


@settings(max_examples=12, deadline=None)
@given(items())
def test_turns_train_as_samples_one_by_one(trees: list[list[Branch]]) -> None:
    """SFT: the normalizers count the loss tokens of branches, and a shared token is trained by each that trains it."""
    model = tiny_llama()
    branches = [branch for item in trees for branch in item if sum(branch.weights)]
    known = {"global_num_loss_tokens": 50, "global_num_samples": 20, "global_num_packs": 3}
    alone = [-logps_alone(model, branch) for branch in branches]
    total = sum(alone, torch.zeros(()))
    means = [x / sum(branch.weights) for x, branch in zip(alone, branches, strict=True)]
    wanted = []
    for loss in (total / 50, sum(means, torch.zeros(())) / 20):
        if branches:
            loss.backward(retain_graph=True)
        wanted.append((loss.item(), gradients(model)))
    set_tree_attention(model)
    batch = batch_of(pack_of(trees))
    batch.metadata.update(known)
    each = batch_losses(model(**tree_inputs(batch, CPU)).logits, batch)
    found = stable_loss(each.sum(), batch, world_size=1), sample_mean(each, batch, world_size=1)
    for loss, (value, grads) in zip(found, wanted, strict=True):
        loss.backward(retain_graph=True)
        assert loss.item() == pytest.approx(value, rel=1e-9)
        got = gradients(model)
        assert not branches or closeness(got, grads) < 1e-6
        assert branches or not any(grad.any() for grad in got.values())


def test_recomputed_layers_run_the_same_tree() -> None:
    batch, found = batch_of(pack_of(draw_pairs(3, 4))), []
    for recomputes in (False, True):
        model = tiny_llama()
        set_tree_attention(model)
        if recomputes:
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        branch_logps(hidden_of(model, batch), model.lm_head, batch).square().sum().backward()
        found.append(gradients(model))
    assert closeness(*found) < 1e-12


@pytest.mark.parametrize("kernel", ["sdpa", "flex_attention"])
def test_a_row_object_runs_trees_too(monkeypatch: pytest.MonkeyPatch, kernel: str) -> None:
    plain = lambda q, k, v, training=False, **others: flex_attention.flex_attention(q, k, v, **others)  # noqa: E731
    monkeypatch.setattr(flex_attention, "compile_friendly_flex_attention", plain)
    pairs, model = draw_pairs(3, 4), tiny_llama(dtype=torch.float32)
    with torch.no_grad():
        wanted = -sum(logps_alone(model, branch) for pair in pairs for branch in pair)
        model.config._attn_implementation = kernel
        run_packed_rows(model)
        batch = batch_of(pack_of(pairs), "tree" if kernel == "sdpa" else "tree-flex")
        assert PackedRow(batch, None, factor=1.0, device=CPU).run(model).item() == pytest.approx(
            float(wanted), rel=1e-5
        )


FAMILIES = {
    "llama": (LlamaConfig, {}),
    "mistral": (MistralConfig, {"sliding_window": 5}),
    "gemma2": (Gemma2Config, {"sliding_window": 5, "attn_logit_softcapping": 4.0, "final_logit_softcapping": None}),
}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("kernel", ["eager", "flash_attention_2", "flex_attention"])
def test_each_kernel_counts_windows_by_depth(monkeypatch: pytest.MonkeyPatch, family: str, kernel: str) -> None:
    """Forward; FlexAttention not compiled, which is all of it that torch has on CPUs."""
    plain = lambda q, k, v, training=False, **others: flex_attention.flex_attention(q, k, v, **others)  # noqa: E731
    monkeypatch.setattr(flex_attention, "compile_friendly_flex_attention", plain)
    install_flash_twin(monkeypatch)
    torch._dynamo.reset()  # Else another soft cap before makes a symbol of this one, which FlexAttention refuses.
    config, options = FAMILIES[family]
    if family == "gemma2" and kernel != "flex_attention":
        options = options | {"attn_logit_softcapping": None}
    model = make(config, "eager", **options).float()
    pairs = [
        [Branch([t % 97 for t in branch.tokens], branch.weights) for branch in pair] for pair in draw_pairs(1, 3, 7)
    ]
    with torch.no_grad():
        wanted = torch.stack([logps_alone(model, branch) for pair in pairs for branch in pair])
        model.config._attn_implementation = kernel
        set_tree_attention(model)
        batch = batch_of(pack_of(pairs), "tree-flex" if kernel == "flex_attention" else "tree")
        found = branch_logps(hidden_of(model, batch), model.lm_head, batch)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)


BROKEN: dict[str, tuple[Callable[..., Any], str]] = {
    "of the whole row": (
        lambda q, k, v, borders, scale, *_: packed_attention(q, k, v, [0, len(q)], scale),
        r"other tokens in one of two samples that share a prompt change the other by \d",
    ),
    "without the prompt": (
        lambda q, k, v, borders, scale, *_: packed_attention(q, k, v, borders, scale),
        "other tokens in the prompt of two samples do not change both",
    ),
}


@pytest.mark.parametrize("kind", [BranchLogps, BranchRewards])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("broken", BROKEN)
def test_models_that_mix_branches_are_refused_before_they_train(
    monkeypatch: pytest.MonkeyPatch, broken: str, dtype: torch.dtype, kind: Any
) -> None:
    """Also as they are before any training, when all tokens are nearly as likely."""
    torch.manual_seed(0)
    of_kind = LlamaForSequenceClassification if kind is BranchRewards else LlamaForCausalLM
    sizes = {"vocab_size": 1000, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2}
    model = of_kind(LlamaConfig(**sizes, num_attention_heads=4, num_labels=1, pad_token_id=0)).to(dtype).train()
    kind(model)
    attention, why = BROKEN[broken]
    monkeypatch.setattr(causal_lm, "packed_attention", attention)
    with pytest.raises(ConfigError, match=f"^{of_kind.__name__} cannot run trees: {why}"):
        kind(model)
    assert model.training


@pytest.mark.parametrize("kind", [BranchLogps, BranchRewards])
def test_models_with_other_positions_are_refused(kind: Any) -> None:
    """Here those of a whole row are twice as far apart as those of a sample."""
    model = with_rewards(tiny_llama()) if kind is BranchRewards else tiny_llama()
    kind(model)
    rotary = model.model.rotary_emb
    forward = rotary.forward
    rotary.forward = lambda hidden, position_ids: forward(hidden, position_ids * (1 + (position_ids.shape[1] > 16)))
    with pytest.raises(ConfigError, match=r"two samples that share a prompt give something else than one by one \("):
        kind(model)


def test_a_row_runs_on_attention_that_was_set_for_it() -> None:
    model = tiny_llama()
    with pytest.raises(ConfigError) as error:
        check_tree(model)
    assert str(error.value).startswith("LlamaForCausalLM cannot run trees: other tokens in ")
    set_tree_attention(model)
    set_tree_attention(model)  # Again does no harm.
    before = torch.get_rng_state()
    check_tree(model)
    assert torch.equal(torch.get_rng_state(), before)
    batch = batch_of(pack_of(draw_pairs(3, 1)), "tree-flex")
    with pytest.raises(ConfigError, match="the model does not have attention 'flex_attention': choose format 'tree'"):
        model(**tree_inputs(batch, CPU))
    # Other batches run as before.
    ids = torch.arange(24).view(2, 12)
    assert torch.equal(model(input_ids=ids).logits, tiny_llama()(input_ids=ids).logits)


def test_layers_with_a_state_are_refused() -> None:
    model = make(LlamaConfig)
    model.config.layer_types = ["linear_attention", "full_attention"]
    with pytest.raises(ConfigError, match="LlamaForCausalLM has linear_attention layers, whose states would run from"):
        set_tree_attention(model)
    model = make(LlamaConfig, "eager")
    model.config._attn_implementation = "paged|sdpa"
    with pytest.raises(
        ConfigError, match=r"has attention 'paged\|sdpa', and packed rows run on sdpa, eager, flash_att"
    ):
        set_tree_attention(model)


def test_runs_of_queries_end_with_leaves() -> None:
    """A pair costs its flat tokens in keys, not its prefix once more."""
    batch = batch_of(pack_of([[Branch([1, 2, 3, 4], [0] * 4), Branch([1, 2, 3, 5, 6], [0] * 5)]]))
    assert batch["tree_cu_seqlens_q"].tolist() == [0, 4, 7]
    assert batch["tree_cu_seqlens_k"].tolist() == [0, 4, 9]
    assert batch["tree_kv_index"].tolist() == [0, 1, 2, 3, 0, 1, 4, 5, 6]
    assert [b - a for a, b in pairwise(batch["segment_starts"].tolist())] == [2, 2, 3]
