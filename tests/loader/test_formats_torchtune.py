"""torchtune's own model and `batch_to_device`, where it is installed; test_formats.py holds their rules."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from packer_cli.loader import PackedDataset, metadata_of
from packer_cli.loader.losses import token_losses
from tests.loader.llama import VOCABULARY

torchtune = pytest.importorskip("torchtune", exc_type=ImportError)


def attend(q: Any, k: Any, v: Any, mask: Any, dropout_p: float, is_causal: bool) -> torch.Tensor:
    """What torchtune's `_sdpa_or_flex_attention` gives where it finds a GPU, but not compiled."""
    if isinstance(mask, BlockMask):
        return flex_attention(q, k, v, block_mask=mask)
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, dropout_p=dropout_p, is_causal=is_causal)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_a_row_trains_as_its_samples_one_by_one(packed: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a recipe: `batch_to_device`, pop the labels, `model(**batch)`."""
    from torchtune.models.llama3_2 import llama3_2
    from torchtune.utils import _device, batch_to_device

    # It asks for a GPU when it is imported.
    monkeypatch.setattr(_device, "_SUPPORTS_FLEX_ATTENTION", True)
    monkeypatch.setattr(_device, "BlockMask", BlockMask, raising=False)
    torch.manual_seed(0)
    model = llama3_2(
        vocab_size=VOCABULARY, num_layers=2, num_heads=4, num_kv_heads=4, embed_dim=64, max_seq_len=512
    ).double()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
        parameter.requires_grad_(False)  # torch bars the backward of FlexAttention on CPUs
    for layer in model.layers:
        layer.attn._attention_call = attend
    rows = PackedDataset(packed.path, 0, packed.num_gpus, format="torchtune")
    batches = [batch for batch in rows if (metadata_of(batch)["sample_num_loss_tokens"][1:] > 5).sum() > 1]
    assert len(batches) > 1
    for batch in batches[:2]:
        samples = [packed.samples[i] for i in metadata_of(batch)["sample_ids"].tolist()]
        wanted = []
        for sample in samples:
            labels = [t if m else -100 for t, m in zip(sample.tokens, sample.mask, strict=True)]
            logits = model(tokens=torch.tensor([sample.tokens]))
            wanted.append(token_losses(logits, torch.tensor([*labels[1:], -100])))
        batch_to_device(batch, torch.device("cpu"))
        labels = batch.pop("labels")
        found = token_losses(model(**batch), labels)
        expected = torch.cat(wanted)
        torch.testing.assert_close(found[: len(expected)], expected, rtol=1e-4, atol=1e-4)
        del batch["mask"]
        merged = token_losses(model(**batch), labels)
        assert abs(merged.sum().item() - expected.sum().item()) > 1e-2
