"""Arguments, models and sets that `packed(Trainer)` refuses, and what it names."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("accelerate")

from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, Trainer, TrainingArguments

from packer_cli.errors import ConfigError
from packer_cli.loader import PackedDataset
from packer_cli.loader.adapters.trainer_arguments import adapted
from packer_cli.loader.adapters.transformers import packed
from tests.examples.test_examples import OWN_GPU


def arguments_for(folder: Path, **options: Any) -> TrainingArguments:
    return TrainingArguments(output_dir=str(folder), use_cpu=True, report_to="none", disable_tqdm=True, **options)


@pytest.mark.parametrize(
    ("options", "others", "message"),
    [
        (
            {"gradient_accumulation_steps": 4},
            {},
            "gradient_accumulation_steps is 4, and the plan says how many micro-",
        ),
        ({"label_smoothing_factor": 0.1}, {}, "label_smoothing_factor=0.1 is not supported on packed rows; set it to"),
        ({"neftune_noise_alpha": 5}, {}, "neftune_noise_alpha=5 makes noise by the length of a sample, and would see"),
        ({}, {"compute_loss_func": print}, "compute_loss_func would not be called on packed rows; leave it out"),
        ({}, {"compute_metrics": print}, "compute_metrics would not be called on packed rows; leave it out"),
        ({}, {"model_init": print}, "model_init would make a model that does not run packed rows; give the model"),
        ({}, {"train_dataset": {"a": "OUT"}}, "train_dataset is a dict: give the folder or URL of a packed set"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(
    pack: Callable[..., Path], model_folder: Path, tmp_path: Path, options: Any, others: Any, message: str
) -> None:
    model = AutoModelForCausalLM.from_pretrained(model_folder)
    with pytest.raises(ConfigError, match=re.escape(message)):
        packed(Trainer)(model, arguments_for(tmp_path, **options), **{"train_dataset": pack(OWN_GPU, 1), **others})


def test_methods_that_would_not_be_called_are_named(
    pack: Callable[..., Path], model_folder: Path, tmp_path: Path
) -> None:
    class Weighted(Trainer):
        def compute_loss(self, *arguments: Any, **others: Any) -> Any:
            return 7 * super().compute_loss(*arguments, **others)

        def evaluate(self, *arguments: Any, **others: Any) -> Any:
            return super().evaluate(*arguments, **others)

        def create_optimizer(self, *arguments: Any) -> Any:
            return super().create_optimizer(*arguments)

        def log(self, *arguments: Any) -> None:
            super().log(*arguments)

    class Derived(packed(Trainer)):
        def prediction_step(self, *arguments: Any, **others: Any) -> Any:
            return super().prediction_step(*arguments, **others)

    model, arguments = AutoModelForCausalLM.from_pretrained(model_folder), arguments_for(tmp_path)
    with pytest.raises(
        ConfigError, match=r"^compute_loss, evaluate of Weighted would not be called on packed rows; de"
    ):
        packed(Weighted)(model, arguments, train_dataset=pack(OWN_GPU, 1))
    with pytest.raises(ConfigError, match=r"^prediction_step of Derived would not be called on packed rows; derive a"):
        Derived(model, arguments, train_dataset=pack(OWN_GPU, 1))
    assert packed(packed(Trainer)).__bases__ == packed(Trainer).__bases__


def test_an_older_release_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for release, is_known in (("5.16.0.dev0", True), ("10.0", True), ("5.15.1", False), ("4.57.3", False)):
        monkeypatch.setattr(
            "packer_cli.loader.adapters.trainer_arguments.version", lambda package, found=release: found
        )
        if is_known:
            assert packed(Trainer).__name__ == "PackedTrainer"
            continue
        message = f"^transformers {release} is installed, and packed\\(Trainer\\) needs 5.16 or later; upgrade transf"
        with pytest.raises(ConfigError, match=message):
            packed(Trainer)


def test_a_model_of_another_vocabulary_is_refused(pack: Callable[..., Path], tmp_path: Path) -> None:
    config = LlamaConfig(
        vocab_size=500, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2
    )
    model = AutoModelForCausalLM.from_config(config)
    with pytest.raises(ConfigError, match="has token ids up to 1023, and the model has embeddings for 500; pack with"):
        packed(Trainer)(model, arguments_for(tmp_path), train_dataset=pack(OWN_GPU, 1))


@pytest.mark.parametrize(("length", "is_named"), [(1024, True), (512, True), (None, False)])
def test_a_length_at_which_nothing_is_cut_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, length: int | None, is_named: bool
) -> None:
    """Also TRL's default, 1,024."""
    trl = pytest.importorskip("trl")
    config = trl.SFTConfig(output_dir=str(tmp_path), use_cpu=True, max_length=length, report_to="none")
    assert adapted(config).max_length is None
    assert ("max_length" in caplog.text) == is_named


def test_another_tokenizer_than_that_of_the_set_is_named(
    pack: Callable[..., Path], model_folder: Path, tmp_path: Path, repo: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The trainer saves it with the model."""
    packed_set = pack(OWN_GPU, 1)

    def said(processing_class: Any) -> str:
        caplog.clear()
        model, arguments = AutoModelForCausalLM.from_pretrained(model_folder), arguments_for(tmp_path)
        packed(Trainer)(model, arguments, train_dataset=packed_set, processing_class=processing_class)
        return caplog.text

    def load(**changes: Any) -> Any:
        tokenizer = AutoTokenizer.from_pretrained(repo / "examples/sample/tokenizer")
        for name, value in changes.items():
            setattr(tokenizer, name, value)
        return tokenizer

    begin = "processing_class, which is saved with the model, is not the tokenizer of the set, "
    template = load().chat_template
    for same in (load(), load(pad_token="<|end|>"), load(chat_template={"default": template}), None, object()):
        assert "processing_class" not in said(same)
    changed = load(chat_template=template + " ")
    assert begin in said(changed)
    assert caplog.text.rstrip().endswith("tokenizer: it has another chat_template_fingerprint")
    assert "another eos_token_id" in said(load(eos_token="<|start|>"))
    larger = load()
    larger.add_tokens(["<|new|>"])
    assert "another vocab_size" in said(larger)
    assert "another chat_template_fingerprint" in said(SimpleNamespace(tokenizer=load(chat_template=None)))


def test_sets_that_were_opened_for_others_are_refused(
    pack: Callable[..., Path], model_folder: Path, tmp_path: Path
) -> None:
    model, arguments = AutoModelForCausalLM.from_pretrained(model_folder), arguments_for(tmp_path)
    with pytest.raises(ConfigError, match="has format 'torchtitan', and this trainer needs format='transformers'"):
        packed(Trainer)(model, arguments, train_dataset=PackedDataset(pack(OWN_GPU, 1), 0, 1, format="torchtitan"))
    with pytest.raises(ConfigError, match="was opened for rank 1 of 2, and this is process 0 of 1; give its folder"):
        packed(Trainer)(model, arguments, train_dataset=PackedDataset(pack(OWN_GPU, 2), 1, 2))


@pytest.mark.parametrize(
    ("groups", "num_gpus", "options", "message"),
    [
        ("384", 2, ["--parallel", "cp=2"], "has groups of sp1-cp2, and here ranks share rows by sequence"),
        ("200:1,384:1:1", 1, ["--lockstep", "1", "--cost", "1,50"], "was planned with --lockstep 1: its ranks run"),
        (OWN_GPU, 2, [], "was planned for 2 GPUs"),
    ],
)
def test_sets_that_it_cannot_train_are_refused(
    pack: Callable[..., Path],
    model_folder: Path,
    tmp_path: Path,
    groups: str,
    num_gpus: int,
    options: Any,
    message: str,
) -> None:
    model = AutoModelForCausalLM.from_pretrained(model_folder)
    arguments = arguments_for(tmp_path)
    if "--parallel" in options:
        arguments.distributed_state.num_processes = num_gpus
    with pytest.raises(ConfigError, match=re.escape(message)):
        packed(Trainer)(model, arguments, train_dataset=pack(groups, num_gpus, *options))


def test_what_is_missing_is_asked_for(model_folder: Path, tmp_path: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(model_folder)
    with pytest.raises(ConfigError, match="give args, a TrainingArguments or SFTConfig"):
        packed(Trainer)(model, train_dataset="OUT")
    with pytest.raises(ConfigError, match="train_dataset is not given: give the folder or URL of a packed set"):
        packed(Trainer)(model, arguments_for(tmp_path))
