"""What a step runner refuses; tests/examples prove what it trains."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from packer_cli.errors import ConfigError  # noqa: E402
from packer_cli.loader.adapters.causal_lm import run_packed_rows  # noqa: E402
from packer_cli.loader.adapters.step_runner import StepRunner  # noqa: E402
from packer_cli.loader.steps import Step  # noqa: E402


class WithGroups:
    """A data set, as far as a runner looks at it before it runs."""

    path, world_size, format = "OUT", 1, "transformers"

    def __init__(self, **sizes: int) -> None:
        groups = [{"sp_size": 1, "cp_size": 1, "tp_size": 1, "pp_size": 1} | sizes]
        self.manifest = {"groups": groups, "tokenizer": {"vocab_size": 64}}


def model() -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    made = LlamaForCausalLM(LlamaConfig(vocab_size=64, initializer_range=0.5, **sizes))
    run_packed_rows(made)
    return made


@pytest.mark.parametrize("sizes", [{"cp_size": 2}, {"sp_size": 2, "tp_size": 2}, {"pp_size": 4}])
def test_rows_that_it_cannot_share_are_refused(sizes: Any) -> None:
    with pytest.raises(ConfigError, match="here ranks share rows by sequence parallelism") as caught:
        StepRunner(model(), WithGroups(), WithGroups(**sizes), device=torch.device("cpu"))
    assert "pack without --parallel, and with SP degrees in --groups" in str(caught.value)


def test_a_model_that_mixes_samples_is_refused() -> None:
    mixing = model()
    norm = mixing.model.norm
    forward = norm.forward
    norm.forward = lambda hidden: forward(hidden + hidden.cumsum(1))
    runner = StepRunner(mixing, WithGroups(), device=torch.device("cpu"))
    with pytest.raises(ConfigError, match="cannot run packed rows"):
        next(runner.losses(Step(batches=[], state={}, epoch=0, number=0)))
