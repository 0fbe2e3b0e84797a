"""Rows of pairs in a model: what they need in memory, that wrappers don't round them, what is refused."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.utils import _pytree  # noqa: E402
from transformers import LlamaConfig, LlamaForCausalLM, LlamaForSequenceClassification  # noqa: E402

from packer_cli.errors import ConfigError  # noqa: E402
from packer_cli.format.ranks import RankRow  # noqa: E402
from packer_cli.loader.adapters.causal_lm import run_packed_rows  # noqa: E402
from packer_cli.loader.adapters.packed_row import PackedRow  # noqa: E402
from packer_cli.loader.adapters.pair_rows import PairRow, RewardRow  # noqa: E402
from packer_cli.loader.losses import branch_rewards  # noqa: E402
from packer_cli.loader.separation import check_trees  # noqa: E402
from tests.examples.pairs import VOCABULARY, Pair, item_of, make_batch, make_pairs  # noqa: E402
from tests.loader.small_rows import CPU, Largest  # noqa: E402
from tests.loader.trees import batch_of  # noqa: E402
from tests.naive.trees import pack_of  # noqa: E402


def make_model(kind: Any = LlamaForCausalLM, **options: Any) -> Any:
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    sizes |= {"vocab_size": VOCABULARY, "initializer_range": 0.3, "pad_token_id": 0, "max_position_embeddings": 16384}
    model = kind(LlamaConfig(**(sizes | options), attn_implementation="sdpa"))
    run_packed_rows(model, gives_rewards=kind is LlamaForSequenceClassification)
    return model


def row_of(pairs: list[Pair], kind: Any = PairRow, *, most: int | None = None) -> Any:
    most = len(pairs) if most is None else most
    row = RankRow(0, 0, 0, 0, 0, 0, 0, 1, 0, 1, 2 * len(pairs), 1, 1, 1.0, len(pairs), most)
    return kind(make_batch(pairs, row), factor=1.0, device=CPU)


@pytest.mark.slow
def test_memory_grows_with_tokens_and_loss_terms_and_not_with_pairs_times_the_longest() -> None:
    """One long completion beside many short pairs: a padded batch would have 400 samples of 6,100 tokens."""
    short, length, hidden = 200, 6000, 64
    ids = [*range(3, VOCABULARY)] * 6
    pairs = [pair._replace(prompt=ids[:100]) for pair in make_pairs(short, 7)]
    pairs[0] = pairs[0]._replace(chosen=ids[:length])
    row = row_of(pairs)
    places = 2 * short * length
    model = make_model(hidden_size=hidden)
    with Largest() as largest:
        output = model(**row.given(), use_cache=False)
        assert output.log_probs.shape == (2 * short, length)
        output.log_probs.sum().backward()
    assert places == 2_400_000
    assert row.num_tokens < 40_000
    # What TRL takes has a number for each place; hidden states would have 64 of them, and logits a thousand.
    assert largest.elements < places * hidden / 4


def test_wrappers_do_not_round_what_it_returns() -> None:
    """FSDP casts all tensors that a forward pass returns, and takes a gradient from them."""
    model, row = make_model(), row_of(make_pairs(3), most=4)
    output = model(**row.given(), use_cache=False)
    wanted = output.log_probs.detach()
    cast = _pytree.tree_map(lambda x: x.bfloat16() if isinstance(x, torch.Tensor) else x, output)
    assert cast.anchor.dtype == torch.bfloat16
    assert torch.equal(cast.log_probs, wanted)
    seen: list[Any] = []
    cast.anchor.register_hook(seen.append)
    cast.log_probs.sum().backward()
    assert [gradient.item() for gradient in seen] == [0]
    assert all(p.grad is not None for p in model.parameters())
    assert not hasattr(cast, "logits")


@pytest.mark.parametrize(
    ("kind", "of_model"), [(PairRow, LlamaForCausalLM), (RewardRow, LlamaForSequenceClassification)]
)
def test_a_rank_without_pairs_takes_part_in_everything(kind: Any, of_model: Any) -> None:
    model = make_model(of_model, num_labels=1)
    row = row_of([], kind, most=3)
    output = model(**row.given(), use_cache=False)
    found = output.log_probs if kind is PairRow else output.logits
    assert found.shape == (6, 1)
    found.sum().backward()
    assert all(p.grad is not None and not p.grad.any() for p in model.parameters())


@pytest.mark.parametrize("make_row", [PairRow, partial(PackedRow, group=None)])
def test_a_model_that_mixes_branches_is_refused(make_row: Any) -> None:
    model = make_model()
    check_trees(model, CPU, make_row)
    norm = model.model.norm
    forward = norm.forward
    norm.forward = lambda hidden: forward(hidden + hidden.cumsum(1))
    with pytest.raises(ConfigError, match=r"^LlamaForCausalLM cannot run trees: other tokens in one of two samples"):
        check_trees(model, CPU, make_row)
    assert model.training


def test_rewards_are_those_of_a_padded_batch() -> None:
    """The model reads them at the last token that is not padding: also in a prompt, or at a sample's first token."""
    model, pad = make_model(LlamaForSequenceClassification, num_labels=1, pad_token_id=2).double().eval(), 2
    ends = [([7, 8], [9, pad], [pad]), ([7, pad, 8], [pad, pad], [9, pad, 9]), ([pad, pad], [pad], [pad, pad, 9, pad])]
    pairs = make_pairs(4) + [Pair(*each, 0.0, 0.0, 0.0) for each in ends]
    found = model(**row_of(pairs, RewardRow).given(), use_cache=False).logits
    samples = [
        pair.prompt + rest for name in ("chosen", "rejected") for pair in pairs for rest in [getattr(pair, name)]
    ]
    longest = max(map(len, samples))
    ids = torch.tensor([each + [pad] * (longest - len(each)) for each in samples])
    mask = torch.tensor([[1] * len(each) + [0] * (longest - len(each)) for each in samples])
    wanted = model(input_ids=ids, attention_mask=mask, use_cache=False).logits
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=0)
    check_trees(model, CPU, RewardRow)


def test_rewards_before_the_end_of_a_row_that_ranks_share_are_refused() -> None:
    """By the rank that has such an end."""
    pack = pack_of([item_of(Pair([7, 8], [9, 2], [9, 10, 11], 0.0, 0.0, 0.0))])
    first, second = (batch_of(pack, sp_size=2, place=place) for place in range(2))
    hidden = torch.ones(1, first["input_ids"].numel(), 4)
    assert branch_rewards(hidden, lambda tokens: tokens, first, 11).tolist() == [1, 0]
    assert branch_rewards(hidden, lambda tokens: tokens, second, 2).tolist() == [0, 1]
    with pytest.raises(
        ConfigError, match="a sample ends with token 2, the model's pad_token_id, and its reward is th"
    ):
        branch_rewards(hidden, lambda tokens: tokens, first, 2)
