"""Borders of a fixed size: the same rows and losses, and shapes that do not change."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from packer_cli.errors import ConfigError
from packer_cli.loader import PackedDataset, metadata_of
from packer_cli.loader.losses import sample_weights
from packer_cli.loader.parallel import packed_attention
from tests.loader.trees import FLAT_FORMATS

BORDERS = {
    "transformers": ("cu_seq_lens_q", "cu_seq_lens_k"),
    "flash-attn": ("cu_seqlens_q", "cu_seqlens_k"),
    "megatron": ("cu_seqlens", "cu_seqlens_padded"),
    "megatron-thd": ("cu_seqlens", "cu_seqlens_padded"),
}


def most_samples(packed: Any) -> int:
    return max(len(pack.samples) for pack in packed.packs)


def batches(packed: Any, rank: int, **options: Any) -> PackedDataset:
    return PackedDataset(packed.path, rank, packed.num_gpus, pad_to="capacity", **options)


def keys_of(batch: Any) -> dict[str, Any]:
    return {**batch[0], "labels": batch[1]} if isinstance(batch, tuple) else batch


@pytest.mark.parametrize("extra", ["plan", 3])
@pytest.mark.parametrize("name", FLAT_FORMATS)
def test_borders_end_in_segments_without_tokens(packed: Any, name: str, extra: Any) -> None:
    most = most_samples(packed)
    size = most + 2 if extra == "plan" else most + extra + 1
    wanted = "plan" if extra == "plan" else most + extra
    repeated = 0
    for rank in range(packed.num_gpus):
        plain, limited = (batches(packed, rank, format=name, **options) for options in ({}, {"max_segments": wanted}))
        for i in range(0, len(plain), 7):
            before, after = plain[i], limited[i]
            borders, fixed = (metadata_of(batch)["cu_seqlens"] for batch in (before, after))
            assert fixed.shape == (size,)
            assert fixed.dtype == torch.int32
            assert torch.equal(fixed[: len(borders)], borders)
            assert (fixed[len(borders) :] == borders[-1]).all()
            repeated += size - len(borders)
            length = int(borders[-1])
            assert torch.equal(sample_weights(before, length), sample_weights(after, length))
            for key in set(BORDERS.get(name, ())) & set(keys_of(after)):
                assert after[key].shape[-1] == size
                assert (after[key].diff() >= 0).all()
            for key, value in keys_of(before).items():
                if isinstance(value, torch.Tensor) and "cu_seq" not in key and key != "max_seqlen":
                    assert torch.equal(value, keys_of(after)[key]), key
            if name == "transformers":
                assert after["max_length_q"] == after["max_length_k"] == int(fixed[-1])
    assert repeated


def test_shapes_are_the_same_in_every_iteration(make_set: Any, tmp_path: Any) -> None:
    packed = make_set(tmp_path / "out", [(64, 1, 30)], num_gpus=2)
    shapes = {
        tuple((key, value.shape if isinstance(value, torch.Tensor) else value) for key, value in batch.items()
              if key in ("input_ids", "labels", "position_ids", "seq_idx") or "_q" in key or "_k" in key)
        for rank in range(2)
        for batch in batches(packed, rank, max_segments="plan")
    }  # fmt: skip
    assert len(shapes) == 1


def test_attention_over_empty_segments_is_that_of_the_row(packed: Any) -> None:
    rng = torch.Generator().manual_seed(0)
    for before, after in zip(batches(packed, 0), batches(packed, 0, max_segments="plan"), strict=True):
        query, key, value = torch.randn(3, int(before["cu_seq_lens_q"][-1]), 2, 8, generator=rng)
        wanted = packed_attention(query, key, value, before["cu_seq_lens_q"])
        assert torch.equal(packed_attention(query, key, value, after["cu_seq_lens_q"]), wanted)


@pytest.mark.parametrize("given", [0, 1, 2])
def test_too_few_are_refused_before_training(packed: Any, given: int) -> None:
    most = most_samples(packed)
    given = most - given
    with pytest.raises(ConfigError) as error:
        batches(packed, 0, max_segments=given)
    assert str(error.value) == (
        f"max_segments is {given}, but {str(packed.path)!r} has a pack of {most} samples, and padding may be one "
        f"segment more: give at least {most + 1}, or pack again with --max-samples {given - 1}"
    )


def test_other_values_are_refused(packed: Any) -> None:
    with pytest.raises(TypeError) as error:
        batches(packed, 0, max_segments="largest")
    assert str(error.value) == "max_segments is 'largest': it must be an integer; write int('largest')"
