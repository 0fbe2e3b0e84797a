"""The Lightning module and its data in the ways that the example leaves out, and what they refuse."""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("lightning")

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.strategies import DDPStrategy, DeepSpeedStrategy, FSDPStrategy, ModelParallelStrategy
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from packer_cli.cli.main import main
from packer_cli.errors import ConfigError, FormatError
from packer_cli.loader import PackedDataset
from packer_cli.loader.adapters import lightning as adapter
from packer_cli.loader.adapters.lightning import PackedDataModule, PackedModule
from packer_cli.loader.losses import batch_losses
from packer_cli.loader.steps import packed_steps
from tests.cli_runner import run
from tests.examples.launcher import Launcher
from tests.examples.reference import train
from tests.examples.test_examples import EPOCH, FREE, OWN_GPU, SHARED, WITHOUT_LOCKSTEP, assert_same, lines_of
from tests.examples.test_packed_trainer import mean_loss

SCRIPT = Path(__file__).with_name("packed_lightning.py")
QUIET = {"accelerator": "cpu", "logger": False, "enable_progress_bar": False, "enable_model_summary": False}


@pytest.mark.parametrize(("way", "groups"), [pytest.param("ddp", FREE, marks=pytest.mark.slow), ("fsdp", SHARED)])
def test_epochs_and_validation_are_those_of_one_process(
    launcher: Launcher, pack: Callable[..., Path], model_folder: Path, tmp_path: Path, way: str, groups: str
) -> None:
    """Also from a checkpoint within an epoch; and with DDP where ranks have different numbers of micro-batches."""
    packed = pack(groups, 2, *(WITHOUT_LOCKSTEP if groups == FREE else []))
    arguments = (packed, model_folder, tmp_path / "run", way)
    codes, text = launcher.run(SCRIPT, *arguments, num_ranks=2, logs=tmp_path / "first")
    assert codes == [0, 0], text
    num_steps = len(lines_of(text))
    wanted = train(packed, model_folder, num_steps)
    assert_same(lines_of(text), wanted, num_steps)
    epochs = [int(epoch) for epoch in re.findall(r"^epoch (\d+) step", text, re.MULTILINE)]
    length = epochs.count(0)
    assert epochs == [0] * length + [1] * (num_steps - length)
    validated = re.findall(r"^validated (\S+) after step (\d+)$", text, re.MULTILINE)
    assert [int(step) for _, step in validated] == [length, num_steps]
    model = AutoModelForCausalLM.from_pretrained(model_folder, attn_implementation="eager")
    for found, step in validated:
        model.load_state_dict(wanted.weights[int(step)], strict=False)
        assert float(found) == pytest.approx(mean_loss(packed, model, length), rel=1e-5)
    for checkpoint in (tmp_path / "run").glob("*"):
        if checkpoint.name != "step=2.ckpt":
            shutil.rmtree(checkpoint) if checkpoint.is_dir() else checkpoint.unlink()
    codes, again = launcher.run(SCRIPT, *arguments, num_ranks=2, logs=tmp_path / "second")
    assert codes == [0, 0], again
    assert_same([*lines_of(text)[:2], *lines_of(again)], wanted, num_steps)
    assert re.findall(r"^(?:epoch|validated) .*$", again, re.MULTILINE)[-1].endswith(f" after step {num_steps}")


def tensor_parallel(size: int = 2) -> ModelParallelStrategy:
    strategy = ModelParallelStrategy()
    strategy._device_mesh = {"tensor_parallel": SimpleNamespace(size=lambda: size)}  # type: ignore[assignment]
    return strategy


class Seen(lightning.Callback):
    """What was trained, and when an epoch was validated."""

    def __init__(self) -> None:
        self.steps: list[tuple[int, int, int, float]] = []
        self.validated: list[int] = []

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, step: Any, index: int) -> None:
        assert module.model.training
        loss = float(trainer.callback_metrics["train_loss"])
        self.steps.append((trainer.global_step, step.epoch, step.number, loss))

    def on_validation_epoch_end(self, trainer: Any, module: Any) -> None:
        if not trainer.sanity_checking:
            self.validated.append(trainer.global_step)


def make_module(**options: Any) -> PackedModule:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=1024, hidden_size=16, intermediate_size=16, num_hidden_layers=2, num_attention_heads=2
    )
    return PackedModule(LlamaForCausalLM(config).eval(), **{"optimizer": torch.optim.AdamW, **options})


def fit(data: PackedDataModule, *callbacks: Any, checkpoint: Any = None, **options: Any) -> Seen:
    seen = Seen()
    trainer = lightning.Trainer(**QUIET, callbacks=[seen, *callbacks], enable_checkpointing=bool(callbacks), **options)
    trainer.fit(make_module(), data, ckpt_path=checkpoint)
    if callbacks:
        trainer.save_checkpoint(Path(callbacks[0].dirpath, "after.ckpt"))
    return seen


@pytest.fixture(scope="module")
def unlike_epochs(pack: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A set of one GPU whose first epoch has two steps, and the others four."""
    packed = tmp_path_factory.mktemp("unlike") / "OUT"
    shutil.copytree(pack(OWN_GPU, 2), packed, symlinks=True)
    done = run(main, "rebalance", packed, "--gpus", 1, "--from-step", EPOCH - 2, "--epoch", 0)
    assert done.code == 0, done.stderr
    return packed


@pytest.mark.parametrize(
    "limit", [{"max_epochs": 2}, *(pytest.param({"max_steps": most}, marks=pytest.mark.slow) for most in (6, 5))]
)
def test_any_checkpoint_goes_on_where_it_was_saved(
    pack: Callable[..., Path], unlike_epochs: Path, tmp_path: Path, limit: dict[str, int]
) -> None:
    def data() -> PackedDataModule:
        return PackedDataModule(unlike_epochs, pack(OWN_GPU, 1))

    checkpoints = [
        ModelCheckpoint(tmp_path, "{step}", every_n_train_steps=1, save_top_k=-1),
        ModelCheckpoint(tmp_path, "end-{step}", every_n_epochs=1, save_top_k=-1, save_on_train_epoch_end=True),
    ]
    whole = fit(data(), *checkpoints, **limit)
    assert [step[:3] for step in whole.steps] == [
        (1, 0, 2), (2, 0, 3), (3, 1, 0), (4, 1, 1), (5, 1, 2), (6, 1, 3)
    ][: limit.get("max_steps", 6)]  # fmt: skip
    assert whole.validated == [2, 6][: 1 + (len(whole.steps) == 6)]
    # Within an epoch, at the end of a step that ends an epoch, at the end of the epoch, and when all was done.
    for name in ("step=1", "step=2", "end-step=2", "step=4"):
        found = fit(data(), checkpoint=tmp_path / f"{name}.ckpt", **limit)
        assert found.steps == whole.steps[int(name[-1]) :], name
        assert set(found.validated) == {step for step in whole.validated if step > int(name[-1])}, name
    longer = fit(data(), checkpoint=tmp_path / "after.ckpt", **({} if "max_epochs" in limit else {"max_steps": 8}),
                 **({"max_epochs": 3} if "max_epochs" in limit else {}))  # fmt: skip
    assert [step[:3] for step in [*whole.steps, *longer.steps]][:8] == [
        (1, 0, 2), (2, 0, 3), (3, 1, 0), (4, 1, 1), (5, 1, 2), (6, 1, 3), (7, 2, 0), (8, 2, 1)
    ]  # fmt: skip


@pytest.mark.slow
def test_a_run_goes_on_on_a_rebalanced_set(
    launcher: Launcher, pack: Callable[..., Path], model_folder: Path, unlike_epochs: Path, tmp_path: Path
) -> None:
    """With another number of processes, from the checkpoint at the place from which it was rebalanced."""
    arguments = (pack(OWN_GPU, 2), model_folder, tmp_path / "run", "alone")
    codes, text = launcher.run(SCRIPT, *arguments, num_ranks=2, logs=tmp_path / "first")
    assert codes == [0, 0], text
    arguments = (unlike_epochs, model_folder, tmp_path / "run", "alone")
    codes, text = launcher.run(SCRIPT, *arguments, num_ranks=1, logs=tmp_path / "second")
    assert codes == [0], text
    steps = re.findall(r"^epoch (\d+) step (\d+) of (\d+)$", text, re.MULTILINE)
    wanted = [(epoch, step, EPOCH) for epoch in range(2) for step in range(EPOCH)][2:]
    assert [tuple(map(int, step)) for step in steps] == wanted


def test_what_an_exception_interrupts_is_trained_again(pack: Callable[..., Path], tmp_path: Path) -> None:
    class Fails(lightning.Callback):
        def on_before_optimizer_step(self, trainer: Any, module: Any, optimizer: Any) -> None:
            if trainer.global_step == 2:
                trainer.save_checkpoint(tmp_path / "failed.ckpt")
                raise RuntimeError("out of memory")

    data = PackedDataModule(pack(OWN_GPU, 1))
    fails = Fails()
    fails.dirpath = tmp_path
    with pytest.raises(RuntimeError, match="out of memory"):
        fit(data, fails, max_steps=4)
    found = fit(PackedDataModule(pack(OWN_GPU, 1)), checkpoint=tmp_path / "failed.ckpt", max_steps=4)
    assert [step[:3] for step in found.steps] == [(3, 0, 2), (4, 0, 3)]


@pytest.mark.parametrize("precision", ["bf16-true", "bf16-mixed"])
def test_precisions_leave_the_rows_alone(pack: Callable[..., Path], precision: str) -> None:
    """Lightning casts the tensors of the batches that it knows."""
    packed = pack(OWN_GPU, 1)
    exact = fit(PackedDataModule(packed), max_steps=2)
    found = fit(PackedDataModule(packed, packed), max_steps=2, precision=precision)
    assert [step[3] for step in found.steps] == pytest.approx([step[3] for step in exact.steps], rel=1e-2)


class SlowBackward(lightning.Callback):
    """Each backward pass of the second step takes a minute longer, by the clock that the module reads."""

    def __init__(self) -> None:
        self.logs: list[dict[str, float]] = []
        self.late = 0

    def perf_counter(self) -> float:
        return time.perf_counter() + self.late

    def on_before_backward(self, trainer: Any, module: Any, loss: Any) -> None:
        self.late += 60 * (trainer.global_step == 1)

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, step: Any, index: int) -> None:
        self.logs.append({name: float(value) for name, value in trainer.callback_metrics.items()})


def test_measured_steps_stand_beside_predicted_ones(
    pack: Callable[..., Path], repo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed = pack(OWN_GPU, 1, "--model", str(repo / "examples/sample/model"), "--gpu", "h100:memory=800GiB")
    slow = SlowBackward()
    monkeypatch.setattr(adapter, "time", slow)
    trainer = lightning.Trainer(**QUIET, callbacks=[slow], enable_checkpointing=False, max_steps=3)
    trainer.fit(make_module(), PackedDataModule(packed))
    steps = list(islice(packed_steps(PackedDataset(packed, 0, 1)), 3))
    predicted = [step.predicted_seconds for step in steps]
    assert [each["predicted_step_seconds"] for each in slow.logs] == pytest.approx(predicted)
    assert max(slow.logs, key=lambda each: each["step_seconds"]) is slow.logs[1]
    assert slow.logs[1]["step_seconds"] > slow.late == 60 * len(steps[1].batches)
    assert slow.logs[2]["step_seconds"] < 60


def test_validation_alone(pack: Callable[..., Path]) -> None:
    packed, module = pack(OWN_GPU, 1), make_module()
    (found,) = lightning.Trainer(**QUIET).validate(module, PackedDataModule(packed, packed), verbose=False)
    assert found["val_loss"] == pytest.approx(mean_loss(packed, module.model, EPOCH), rel=1e-5)


def test_samples_that_were_set_aside_are_not_trained_on(pack: Callable[..., Path]) -> None:
    aside = pack(OWN_GPU, 1, "--validation", "5") / "validation"
    with pytest.raises(ConfigError, match="samples that were set aside, and 5 of them are in the training set"):
        fit(PackedDataModule(pack(OWN_GPU, 1), aside), max_steps=1)
    lightning.Trainer(**QUIET).validate(make_module(), PackedDataModule(pack(OWN_GPU, 1), aside), verbose=False)


def test_weights_of_losses_count(repo: Path, tmp_path: Path) -> None:
    sample = repo / "examples" / "sample"
    lines = (sample / "chats.jsonl").read_text(encoding="utf-8").splitlines()[:20]
    weighted = [json.dumps({**json.loads(line), "weight": 1 + 4 * (i % 2)}) for i, line in enumerate(lines)]
    corpus, packed = tmp_path / "corpus.jsonl", tmp_path / "OUT"
    corpus.write_text("\n".join([*weighted, ""]), encoding="utf-8")
    options = ["--groups", "384:1", "--gpus", 1, "--workers", 1, "--output", packed]
    done = run(main, "pack", corpus, "--tokenizer", sample / "tokenizer", *options)
    assert done.code == 0, done.stderr
    module, total, count = make_module(), 0.0, 0.0
    with torch.no_grad():
        for batch in PackedDataset(packed, 0, 1):
            logits = module.model(batch["input_ids"], position_ids=batch["position_ids"], use_cache=False).logits
            total, count = total + float(batch_losses(logits, batch).sum()), count + batch["loss_weight"]
    (found,) = lightning.Trainer(**QUIET).validate(module, PackedDataModule(packed, packed), verbose=False)
    assert found["val_loss"] == pytest.approx(total / count, rel=1e-5)
    assert found["val_loss"] != pytest.approx(mean_loss(packed, module.model, 10**6), rel=1e-5)


USUAL = {
    "accumulate_grad_batches": 1, "limit_train_batches": 1.0, "fast_dev_run": False, "global_rank": 0, "world_size": 2,
}  # fmt: skip
"""Of a trainer."""


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"accumulate_grad_batches": 4}, "accumulate_grad_batches is 4, and the plan says how many micro-batches "),
        (
            {"limit_train_batches": 5},
            "limit_train_batches is 5, and an epoch of a plan is whole; set max_steps instead",
        ),
        ({"strategy": FSDPStrategy()}, "do not train with FSDPStrategy, which cannot run several micro-batches in a"),
        ({"strategy": DeepSpeedStrategy.__new__(DeepSpeedStrategy)}, "do not train with DeepSpeedStrategy"),
        ({"strategy": tensor_parallel()}, "give data_parallel_size=2 and tensor_parallel_size=1"),
        ({"world_size": 2}, "was planned for 1 GPU"),
    ],
)
def test_trainers_that_do_not_fit_are_refused(pack: Callable[..., Path], settings: Any, message: str) -> None:
    data = PackedDataModule(pack(OWN_GPU, 1))
    data.trainer = SimpleNamespace(**{**USUAL, "strategy": DDPStrategy(), **settings})
    with pytest.raises(ConfigError, match=re.escape(message)):
        data.setup("fit")


def test_fsdp_refuses_ranks_that_do_not_meet(pack: Callable[..., Path]) -> None:
    data = PackedDataModule(pack(FREE, 2, *WITHOUT_LOCKSTEP))
    strategy = tensor_parallel(size=1)
    data.trainer = SimpleNamespace(**USUAL, strategy=strategy)
    with pytest.raises(ConfigError, match="was planned with --lockstep 1: its ranks run"):
        data.setup("fit")


def test_what_is_missing_is_asked_for(pack: Callable[..., Path]) -> None:
    trainer = lightning.Trainer(**QUIET, max_steps=1)
    with pytest.raises(ConfigError, match="give fit or validate a PackedDataModule"):
        trainer.fit(make_module(), [None])
    with pytest.raises(ConfigError, match="PackedModule has no optimizer; give one, such as"):
        trainer.fit(make_module(optimizer=None), PackedDataModule(pack(OWN_GPU, 1)))


def test_a_checkpoint_without_a_place_is_refused(pack: Callable[..., Path], tmp_path: Path) -> None:
    packed = pack(OWN_GPU, 1)
    fit(PackedDataModule(packed), ModelCheckpoint(tmp_path), max_steps=1)
    checkpoint = torch.load(tmp_path / "after.ckpt", weights_only=False)
    del checkpoint["PackedDataModule"]
    torch.save(checkpoint, tmp_path / "other.ckpt")
    with pytest.raises(ConfigError, match=r"other\.ckpt does not hold a place in a packed set"):
        fit(PackedDataModule(packed), checkpoint=tmp_path / "other.ckpt", max_steps=2)
    with pytest.raises(FormatError, match="the loader state belongs to the packed set"):
        fit(PackedDataModule(pack("384:1:0", 1)), checkpoint=tmp_path / "after.ckpt", max_steps=2)
