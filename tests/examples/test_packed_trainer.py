"""`packed(Trainer)` in the ways that the examples leave out, and what it refuses."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("accelerate")

import torch
import torch.nn.functional as F  # noqa: N812
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

from packer_cli.cli.main import main
from packer_cli.errors import ConfigError
from packer_cli.loader import PackedDataset
from packer_cli.loader.adapters.transformers import packed
from tests.cli_runner import run
from tests.examples.launcher import Launcher
from tests.examples.reference import samples_of, steps_of, train
from tests.examples.test_examples import EPOCH, OWN_GPU, SHARED, assert_same, lines_of

SCRIPT = Path(__file__).with_name("packed_trainer.py")


def mean_loss(packed_set: Path, model: Any) -> float:
    """Of the set, token by token."""
    total, count = 0.0, 0
    with torch.no_grad():
        for iterations in steps_of(packed_set)[:EPOCH]:
            for ids, labels in (sample for packs in iterations for pack in packs for sample in samples_of(pack)):
                logits = model(input_ids=ids[None], use_cache=False).logits[0]
                total += F.cross_entropy(logits, labels, ignore_index=-100, reduction="sum").item()
                count += int((labels >= 0).sum())
    return total / count


@pytest.mark.parametrize("way", ["ddp", "fsdp"])
def test_epochs_and_evaluation_are_those_of_one_process(
    launcher: Launcher, pack: Callable[..., Path], model_folder: Path, tmp_path: Path, way: str
) -> None:
    packed_set = pack(SHARED, 2)
    arguments = (packed_set, model_folder, tmp_path / "run", way)
    codes, text = launcher.run(SCRIPT, *arguments, num_ranks=2, logs=tmp_path / "logs")
    assert codes == [0, 0], text
    num_steps = EPOCH + EPOCH // 2
    wanted = train(packed_set, model_folder, num_steps)
    assert_same(lines_of(text), wanted, num_steps)
    epochs = re.findall(r"^epoch (\S+) after step \d+$", text, re.MULTILINE)
    assert [float(epoch) for epoch in epochs] == pytest.approx([(step + 1) / EPOCH for step in range(num_steps)])
    evaluated = re.findall(r"^evaluated (\S+) after step (\d+)$", text, re.MULTILINE)
    assert [int(step) for _, step in evaluated] == [EPOCH, num_steps]
    model = AutoModelForCausalLM.from_pretrained(model_folder, attn_implementation="eager")
    for found, step in evaluated:
        model.load_state_dict(wanted.weights[int(step)], strict=False)
        assert float(found) == pytest.approx(mean_loss(packed_set, model), rel=1e-5)


def test_it_goes_on_with_another_number_of_processes(
    launcher: Launcher, pack: Callable[..., Path], model_folder: Path, tmp_path: Path
) -> None:
    """After a rebalance by the state in its checkpoint, for the steps that are left, which train what is left."""
    packed_set = shutil.copytree(pack(OWN_GPU, 2), tmp_path / "OUT")
    run_folder = tmp_path / "run"
    codes, text = launcher.run(
        SCRIPT, packed_set, model_folder, run_folder, "stops", num_ranks=2, logs=tmp_path / "first"
    )
    assert codes == [0, 0], text
    state = run_folder / "checkpoint-2" / "trainer_state.json"
    done = run(main, "rebalance", packed_set, "--gpus", 1, "--state", state)
    assert done.code == 0, done.stderr
    left = PackedDataset(packed_set, 0, 1)
    num_left = left.num_steps - left.step_of(0)
    left.set_epoch(left.epoch + 1)
    num_steps = 2 + num_left + left.num_steps
    codes, text = launcher.run(
        SCRIPT, packed_set, model_folder, run_folder, "resumes", num_ranks=1, logs=tmp_path / "second"
    )
    assert codes == [0], text
    assert f"rebalanced set: 2 steps are trained, and {num_steps - 2} are left" in text
    assert [step for step, _, _ in lines_of(text)] == list(range(3, num_steps + 1))
    evaluated = re.findall(r"^evaluated \S+ after step (\d+)$", text, re.MULTILINE)
    assert [int(step) for step in evaluated] == [2 + num_left, num_steps]


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
        ({"label_smoothing_factor": 0.1}, {}, "label_smoothing_factor is not supported on packed rows; set it to 0"),
        ({}, {"compute_loss_func": print}, "compute_loss_func would not be called on packed rows; leave it out"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(
    pack: Callable[..., Path], model_folder: Path, tmp_path: Path, options: Any, others: Any, message: str
) -> None:
    model = AutoModelForCausalLM.from_pretrained(model_folder)
    with pytest.raises(ConfigError, match=re.escape(message)):
        packed(Trainer)(model, arguments_for(tmp_path, **options), train_dataset=pack(OWN_GPU, 1), **others)


@pytest.mark.parametrize(
    ("groups", "num_gpus", "options", "message"),
    [
        ("384", 2, ["--parallel", "cp=2"], "has groups of sp1-cp2, and this trainer shares rows by sequence"),
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
    with pytest.raises(ConfigError, match="give args: they say how many processes train"):
        packed(Trainer)(model, train_dataset="OUT")
    with pytest.raises(ConfigError, match="give train_dataset, the folder or URL of a packed set"):
        packed(Trainer)(model, arguments_for(tmp_path))
