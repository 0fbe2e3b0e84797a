"""Gradient checkpointing on exactly as many layers as asked for changes memory and nothing else."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from packer_cli.loader.layer_checkpointing import LayerCheckpointing
from tests.loader.llama import closeness, gradients, tiny_llama


def calls_of_each_layer(model: Any) -> list[int]:
    """How often each layer ran forward, the second time for backward."""
    counts = [0] * len(model.model.layers)
    for i, layer in enumerate(model.model.layers):

        def count(*_: Any, i: int = i) -> None:
            counts[i] += 1

        layer.self_attn.register_forward_hook(count)
    return counts


def test_exactly_that_many_layers_recompute_and_the_gradients_stay() -> None:
    model = tiny_llama()
    ids = torch.arange(12)[None] * 7

    def step() -> dict[str, torch.Tensor]:
        model(input_ids=ids, labels=ids).loss.backward()
        return gradients(model)

    wanted = step()
    counts = calls_of_each_layer(model)
    checkpointing = LayerCheckpointing(model)
    for layers in (0, 2, 1, 0, 2):
        checkpointing.set(layers)
        counts[:] = [0, 0]
        assert closeness(wanted, step()) < 1e-10
        assert counts == [2 if i < layers else 1 for i in range(2)]
    model.eval()
    counts[:] = [0, 0]
    step()
    assert counts == [1, 1]


def test_errors() -> None:
    checkpointing = LayerCheckpointing(tiny_llama())
    for wrong in (-1, 3):
        with pytest.raises(ValueError) as error:
            checkpointing.set(wrong)
        assert str(error.value) == (
            f"checkpoint_layers is {wrong}, but the model has 2 layers: plan with the profile of this model"
        )
    assert not any(layer.gradient_checkpointing for layer in checkpointing.layers)
    with pytest.raises(ValueError) as error:
        LayerCheckpointing(nn.Sequential(nn.Linear(2, 2)))
    assert str(error.value) == (
        "Sequential has no layers that support gradient checkpointing: give a transformers model that does, or its "
        "decoder layers as `layers`"
    )


def test_given_layers() -> None:
    model = tiny_llama()
    checkpointing = LayerCheckpointing(model, model.model.layers[1:])
    counts = calls_of_each_layer(model)
    checkpointing.set(1)
    ids = torch.arange(6)[None]
    model(input_ids=ids, labels=ids).loss.backward()
    assert counts == [1, 2]
