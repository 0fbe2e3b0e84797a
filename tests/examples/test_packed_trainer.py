"""`packed(Trainer)` in the ways that the examples leave out."""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("accelerate")

import torch
import torch.nn.functional as F  # noqa: N812
from transformers import AutoModelForCausalLM, Trainer, TrainerCallback

from packer_cli.cli.main import main
from packer_cli.errors import ConfigError
from packer_cli.loader import PackedDataset
from packer_cli.loader.adapters import packed_trainer
from packer_cli.loader.adapters.transformers import packed
from packer_cli.loader.steps import packed_steps
from tests.cli_runner import run
from tests.examples.launcher import Launcher
from tests.examples.reference import LEARNING_RATE, samples_of, steps_of, train
from tests.examples.test_examples import EPOCH, OWN_GPU, SHARED, assert_same, lines_of
from tests.examples.test_trainer_refusals import arguments_for

SCRIPT = Path(__file__).with_name("packed_trainer.py")


def mean_loss(packed_set: Path, model: Any, num_steps: int = EPOCH) -> float:
    """Of the steps of a set's first epoch, token by token."""
    total, count = 0.0, 0
    with torch.no_grad():
        for iterations in steps_of(packed_set)[:num_steps]:
            for ids, labels in (sample for packs in iterations for pack in packs for sample in samples_of(pack)):
                logits = model(input_ids=ids[None], use_cache=False).logits[0]
                total += F.cross_entropy(logits, labels, ignore_index=-100, reduction="sum").item()
                count += int((labels >= 0).sum())
    return total / count


@pytest.mark.parametrize("way", ["ddp", *(pytest.param(way, marks=pytest.mark.slow) for way in ("fsdp", "fsdp-once"))])
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
    reduced = [
        int(num_bytes) for num_bytes in re.findall(r"^reduced (\d+) bytes before optimizer", text, re.MULTILINE)
    ]
    times = [len(iterations) if way == "fsdp" else 1 for iterations in steps_of(packed_set)[:num_steps]]
    num_bytes = sum(weight.nbytes for weight in wanted.weights[0].values())
    assert reduced == [num_bytes * each for each in times]
    evaluated = re.findall(r"^evaluated (\S+) after step (\d+)$", text, re.MULTILINE)
    assert [int(step) for _, step in evaluated] == [EPOCH, num_steps]
    model = AutoModelForCausalLM.from_pretrained(model_folder, attn_implementation="eager")
    for found, step in evaluated:
        model.load_state_dict(wanted.weights[int(step)], strict=False)
        assert float(found) == pytest.approx(mean_loss(packed_set, model), rel=1e-5)


@pytest.mark.slow
def test_it_goes_on_with_another_number_of_processes(
    launcher: Launcher, pack: Callable[..., Path], model_folder: Path, tmp_path: Path
) -> None:
    """After a rebalance by the state in its checkpoint, for the steps that are left, which train what is left."""
    packed_set = shutil.copytree(pack(OWN_GPU, 2), tmp_path / "OUT", symlinks=True)
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


class Record(TrainerCallback):
    """What is logged."""

    def __init__(self) -> None:
        self.logs: list[dict[str, Any]] = []

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **others: Any) -> None:
        self.logs.append({"step": state.global_step, "epoch": state.epoch, **logs})

    def losses(self) -> list[float]:
        return [logs["loss"] for logs in self.logs if "loss" in logs]


@pytest.fixture
def make(pack: Callable[..., Path], model_folder: Path, tmp_path: Path) -> Callable[..., tuple[Any, Record]]:
    """A trainer of one process, and what it logs."""

    def make(packed_set: Path, **options: Any) -> tuple[Any, Record]:
        record = Record()
        options = {"lr_scheduler_type": "constant", "learning_rate": LEARNING_RATE, "logging_steps": 1, **options}
        datasets = {"eval_dataset": options.pop("eval_dataset", None), "train_dataset": packed_set}
        model = AutoModelForCausalLM.from_pretrained(model_folder)
        trainer = packed(Trainer)(model, arguments_for(tmp_path / "run", **options), callbacks=[record], **datasets)
        return trainer, record

    return make


Make = Callable[..., tuple[Any, Record]]


@pytest.mark.slow
def test_measured_steps_stand_beside_predicted_ones(pack: Callable[..., Path], make: Make, repo: Path) -> None:
    packed_set = pack(OWN_GPU, 1, "--model", str(repo / "examples/sample/model"), "--gpu", "h100:memory=800GiB")
    trainer, record = make(packed_set, max_steps=EPOCH, logging_steps=2)
    trainer.train()
    predicted = [step.predicted_seconds for step in packed_steps(PackedDataset(packed_set, 0, 1))][:EPOCH]
    logs = [each for each in record.logs if "loss" in each]
    assert [each["predicted_step_seconds"] for each in logs] == pytest.approx(
        [(first + second) / 2 for first, second in zip(predicted[::2], predicted[1::2], strict=True)]
    )
    assert all(0 < each["step_seconds"] < 60 for each in logs)
    plain, record = make(pack(OWN_GPU, 1), max_steps=1)
    plain.train()
    assert not any("predicted_step_seconds" in each for each in record.logs)


def test_what_the_plan_decides_is_named(
    pack: Callable[..., Path], make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    make(pack(OWN_GPU, 1), per_device_train_batch_size=4, dataloader_num_workers=2)
    assert "no effect, as the plan decides: per_device_train_batch_size, dataloader_num_workers" in caplog.text
    for size, is_named in ((8, True), (1, False)):  # 8 is transformers' default.
        caplog.clear()
        make(pack(OWN_GPU, 1), per_device_train_batch_size=size)
        assert ("per_device_train_batch_size" in caplog.text) == is_named


@pytest.mark.slow
def test_training_twice_runs_the_data_twice(pack: Callable[..., Path], make: Make) -> None:
    """As with any Trainer, whose second train() begins its epochs anew."""
    packed_set = pack(OWN_GPU, 1)
    trainer, record = make(packed_set, num_train_epochs=1, learning_rate=0.0, include_num_input_tokens_seen="all")
    num_steps = PackedDataset(packed_set, 0, 1).num_steps
    for _ in range(2):
        trainer.train()
        assert trainer.state.global_step == num_steps
    losses = record.losses()
    assert len(losses) == 2 * num_steps
    assert losses[:num_steps] == losses[num_steps:]
    tokens = sum(batch["input_ids"].numel() for batch in PackedDataset(packed_set, 0, 1))
    assert trainer.state.num_input_tokens_seen == tokens


@pytest.mark.slow
def test_epochs_of_unlike_lengths_and_every_resume_count_the_steps_of_the_plan(
    pack: Callable[..., Path], make: Make, tmp_path: Path
) -> None:
    """A rebalanced set: what is left of its first epoch, a whole one, and a half that repeats it; resumed twice."""
    packed_set = shutil.copytree(pack(OWN_GPU, 2), tmp_path / "OUT", symlinks=True)
    first = PackedDataset(packed_set, 0, 2)
    state = tmp_path / "state.json"
    end = next(i for i in range(len(first)) if first.step_of(i) == 2)
    state.write_text(json.dumps(first.state_dict(end)))
    done = run(main, "rebalance", packed_set, "--gpus", 1, "--state", state)
    assert done.code == 0, done.stderr
    left = PackedDataset(packed_set, 0, 1)
    lengths = [left.num_steps - left.step_of(0), left.steps_of(1), -(-left.steps_of(2) // 2)]
    assert lengths[0] < lengths[1]
    _refuse_deepspeed(make, packed_set, first.state_dict(end), tmp_path / "checkpoint-2")
    options = {"num_train_epochs": 2.5, "save_steps": 1, "save_strategy": "steps"}
    trainer, record = make(packed_set, **options)
    trainer.train()
    assert trainer.state.global_step == trainer.state.max_steps == sum(lengths)
    wanted, epochs = record.losses(), [logs["epoch"] for logs in record.logs if "loss" in logs]
    assert epochs[lengths[0] - 1] == 1
    assert epochs[-1] == pytest.approx(2.5, abs=0.2)
    for step in (1, lengths[0], lengths[0] + 1, sum(lengths) - 1):
        trainer, record = make(packed_set, **options)
        trainer.train(resume_from_checkpoint=str(tmp_path / f"run/checkpoint-{step}"))
        assert trainer.state.global_step == trainer.state.max_steps == sum(lengths)
        assert record.losses() == pytest.approx(wanted[step:], rel=1e-6)


def _refuse_deepspeed(make: Make, packed_set: Path, state: Any, checkpoint: Path) -> None:
    checkpoint.mkdir()
    saved = {"PackedDataState": {"args": {}, "attributes": {"data": state, "first_epoch": 0}}}
    (checkpoint / "trainer_state.json").write_text(json.dumps({"global_step": 2, "stateful_callbacks": saved}))
    trainer, _ = make(packed_set)
    trainer.is_deepspeed_enabled = True
    with pytest.raises(ConfigError, match="DeepSpeed reads a checkpoint only on the number of GPUs that wrote it"):
        trainer.train(resume_from_checkpoint=checkpoint)


def test_checkpoints_that_it_cannot_use_are_named(pack: Callable[..., Path], make: Make, tmp_path: Path) -> None:
    trainer, _ = make(pack(OWN_GPU, 1), max_steps=1)
    with pytest.raises(ConfigError, match=r"there is no checkpoint in '.*run'; give the folder of one"):
        trainer.train(resume_from_checkpoint=True)
    other = tmp_path / "checkpoint-7"
    other.mkdir()
    (other / "trainer_state.json").write_text(json.dumps({"global_step": 7, "stateful_callbacks": {}}))
    with pytest.raises(ConfigError, match="the checkpoint does not hold a place in a packed set: it is from a run"):
        trainer.train(resume_from_checkpoint=other)


def test_sets_for_evaluation_have_names(pack: Callable[..., Path], make: Make, model_folder: Path) -> None:
    first, second = pack(OWN_GPU, 1), pack("384", 1)
    trainer, record = make(first, eval_dataset={"first": first, "second": second}, max_steps=1)
    metrics = trainer.evaluate()
    model = AutoModelForCausalLM.from_pretrained(model_folder, attn_implementation="eager")
    assert metrics["eval_first_loss"] == pytest.approx(mean_loss(first, model), rel=1e-5)
    assert metrics["eval_first_samples_per_second"] > 0
    assert metrics["eval_second_loss"] == pytest.approx(mean_loss(second, model), rel=1e-5)
    assert trainer.evaluate(second, metric_key_prefix="test")["test_loss"] == metrics["eval_second_loss"]
    assert {"eval_first_loss", "eval_second_loss", "test_loss"} <= {name for logs in record.logs for name in logs}
    with pytest.raises(ConfigError, match="predict is not supported on packed sets; use evaluate"):
        trainer.predict(first)


def test_samples_that_were_set_aside_are_not_trained_on(pack: Callable[..., Path], make: Make) -> None:
    """Of the same tokens; of two validation sets, the larger holds the other."""
    few, many = (pack(OWN_GPU, 1, "--validation", number) for number in ("4", "9"))
    number = PackedDataset(many / "validation", 0, 1).manifest["counts"]["samples"]
    message = f"validation' holds {number} samples that were set aside, and {number} of them are in the training set; "
    with pytest.raises(ConfigError, match=message + "evaluate on that set's own validation set, or plan the"):
        make(pack(OWN_GPU, 1), eval_dataset=many / "validation")
    seen = number - PackedDataset(few / "validation", 0, 1).manifest["counts"]["samples"]
    with pytest.raises(ConfigError, match=f"and {seen} of them are in the training set"):
        make(few, eval_dataset={"own": few / "validation", "other": many / "validation"})
    trainer, _ = make(many, eval_dataset={"own": many / "validation", "other": few / "validation"}, max_steps=1)
    assert trainer.evaluate().keys() >= {"eval_own_loss", "eval_other_loss"}
    trainer, _ = make(few, max_steps=1)
    assert "eval_loss" in trainer.evaluate(few / "validation")
    with pytest.raises(ConfigError, match=f"and {seen} of them are in the training set"):
        trainer.evaluate(many / "validation")
    other_tokens = pack(OWN_GPU, 1, "--append-eos", "never")
    make(other_tokens, eval_dataset=many / "validation")


def test_saving_is_no_time_of_a_step(pack: Callable[..., Path], make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    save, late = Trainer._save_checkpoint, 0

    def save_slowly(trainer: Any, *arguments: Any) -> None:
        nonlocal late
        late += 60 * (trainer.state.global_step == 1)
        save(trainer, *arguments)

    monkeypatch.setattr(Trainer, "_save_checkpoint", save_slowly)
    monkeypatch.setattr(packed_trainer, "time", SimpleNamespace(perf_counter=lambda: time.perf_counter() + late))
    trainer, record = make(pack(OWN_GPU, 1), max_steps=2, logging_steps=1, save_steps=1)
    trainer.train()
    _, after_saving = (logs["step_seconds"] for logs in record.logs if "step_seconds" in logs)
    assert late
    assert after_saving < 60


@pytest.mark.parametrize("groups", [OWN_GPU, "192:1,384:1"])
def test_checkpointing_of_all_layers_is_the_plans_if_that_knows(
    pack: Callable[..., Path], make: Make, caplog: pytest.LogCaptureFixture, groups: str
) -> None:
    trainer, _ = make(pack(groups, 1), max_steps=1, activation_checkpointing=True)
    is_planned = groups == OWN_GPU
    notice = "gradient_checkpointing: each row recomputes as many layers as the plan says, and no more"
    assert (notice in caplog.text) == is_planned
    assert not trainer.args.activation_checkpointing
    ran: list[int] = []
    layers = trainer.model.model.layers
    for layer in layers:
        layer.mlp.register_forward_pre_hook(lambda *_: ran.append(1))
    trainer.train()
    dataset = PackedDataset(pack(groups, 1), 0, 1)
    batches = [batch for batch in dataset if batch["step"] == 0]
    again = sum(batch["checkpoint_layers"] if is_planned else len(layers) for batch in batches)
    checks = 5 * len(layers)  # Three rows, two samples alone.
    assert again
    assert len(ran) == checks + len(layers) * len(batches) + again
