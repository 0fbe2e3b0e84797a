"""Small models of transformers, a row of samples, and what they must arrive at one by one."""

from __future__ import annotations

from itertools import pairwise

import pytest

torch = pytest.importorskip("torch")

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from transformers import (  # noqa: E402
    AutoModelForCausalLM,
    CohereConfig,
    GraniteConfig,
    LlamaConfig,
    MistralConfig,
    Qwen3Config,
)

from packer_cli.loader.adapters.packed_row import PackedRow  # noqa: E402
from packer_cli.loader.losses import token_losses  # noqa: E402

CPU = torch.device("cpu")
VOCABULARY = 97
SIZES = (5, 12, 7)


def make(config_class, attention="sdpa", **options):
    torch.manual_seed(0)
    sizes = {
        "vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "pad_token_id": 0, "bos_token_id": 1,
        "eos_token_id": 2, "initializer_range": 0.3,
    }  # fmt: skip
    config = config_class(**(sizes | options))
    return AutoModelForCausalLM.from_config(config, attn_implementation=attention).double().train()


def make_batch(sizes=SIZES, *, weighted=False):
    """A row of samples without a loss on every third token."""
    total = sum(sizes)
    ids = torch.arange(total) * 7919 % (VOCABULARY - 3) + 3
    positions = torch.cat([torch.arange(size) for size in sizes])
    labels = torch.where((positions > 0) & (positions % 3 > 0), ids, -100)
    borders = torch.tensor([0, *torch.tensor(sizes).cumsum(0).tolist()], dtype=torch.int32)
    batch = {
        "input_ids": ids[None], "position_ids": positions[None], "labels": labels[None], "cu_seq_lens_q": borders,
        "max_length_q": max(sizes),
    }  # fmt: skip
    if weighted:
        batch["loss_weights"] = (torch.arange(total) % 5)[None].float()
    return batch


def run(model, batch, factor=0.25, device=CPU):
    row = PackedRow(batch, None, factor=factor, device=device)
    loss = row.run(model)
    assert torch.equal(loss.detach(), row.loss)
    return loss


def one_by_one(model, batch, factor=0.25):
    """Its own logits, without a row."""
    total = torch.zeros((), dtype=torch.float64, device=batch["input_ids"].device)
    for begin, end in pairwise(batch["cu_seq_lens_q"].tolist()):
        logits = model(input_ids=batch["input_ids"][:, begin:end], use_cache=False).logits
        weights = batch.get("loss_weights")
        shifted = None if weights is None else weights[:, begin + 1 : end]
        total = total + token_losses(logits[:, :-1], batch["labels"][:, begin + 1 : end], shifted).sum()
    return total * factor


def gradients(model, loss):
    loss.backward()
    found = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad()
    return found


FAMILIES = {
    "llama": (LlamaConfig, {}),
    "qwen3": (Qwen3Config, {}),
    "mistral": (MistralConfig, {"sliding_window": 12}),
    "scaled": (CohereConfig, {"logit_scale": 0.2}),
    "divided": (GraniteConfig, {"logits_scaling": 8.0}),
    "tied": (LlamaConfig, {"tie_word_embeddings": True}),
}


class Largest(TorchDispatchMode):
    """Elements of the largest tensor that any operation makes."""

    def __init__(self):
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        made = function(*args, **(kwargs or {}))
        for tensor in made if isinstance(made, (tuple, list)) else [made]:
            if isinstance(tensor, torch.Tensor):
                self.elements = max(self.elements, tensor.numel())
        return made
