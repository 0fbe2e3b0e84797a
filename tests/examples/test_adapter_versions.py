"""Trainers that are started again on a set whose current version is another one by then."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("accelerate")
pytest.importorskip("lightning")

from lightning.pytorch.callbacks import ModelCheckpoint
from transformers import AutoModelForCausalLM, Trainer, TrainerCallback

from packer_cli.cli.main import main
from packer_cli.loader import PackedDataset
from packer_cli.loader.adapters.lightning import PackedDataModule
from packer_cli.loader.adapters.reference import ReferenceLogps
from packer_cli.loader.adapters.transformers import packed
from tests.cli_runner import run
from tests.examples.test_examples import OWN_GPU
from tests.examples.test_packed_lightning import fit
from tests.examples.test_trainer_refusals import arguments_for


class Losses(TrainerCallback):
    def __init__(self) -> None:
        self.found: list[float] = []

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **others: Any) -> None:
        self.found += [logs["loss"]] if "loss" in logs else []


@pytest.fixture
def out(pack: Callable[..., Path], tmp_path: Path) -> Path:
    return Path(shutil.copytree(pack(OWN_GPU, 1, "--validation", "5"), tmp_path / "OUT", symlinks=True))


def make_version(out: Path) -> str:
    """Plan and write the set with steps of half the size, which makes more of them; returns the folder of before."""
    before = PackedDataset(out, 0, 1)
    for command in (["plan", out, "--global-tokens", 800, "--validation", 9], ["write", out]):
        assert run(main, *command).code == 0
    assert PackedDataset(out, 0, 1).num_steps > before.num_steps
    return before.folder


def test_a_trainer_goes_on_with_its_version(out: Path, model_folder: Path, tmp_path: Path) -> None:
    def train(checkpoint: str | None) -> tuple[Any, list[float], dict[str, float]]:
        losses, options = Losses(), {"num_train_epochs": 1, "save_steps": 1, "logging_steps": 1}
        trainer = packed(Trainer)(
            AutoModelForCausalLM.from_pretrained(model_folder), arguments_for(tmp_path / "run", **options),
            callbacks=[losses], train_dataset=out, eval_dataset=out / "validation",
        )  # fmt: skip
        trainer.train(resume_from_checkpoint=checkpoint)
        return trainer, losses.found, trainer.evaluate()

    trainer, whole, metrics = train(None)
    folder = make_version(out)
    again, losses, same = train(str(tmp_path / "run/checkpoint-1"))
    assert again.packed_set.folder == folder
    assert losses == pytest.approx(whole[1:], rel=1e-6)
    assert again.state.global_step == again.state.max_steps == trainer.state.max_steps == len(whole)
    assert same["eval_loss"] == pytest.approx(metrics["eval_loss"], rel=1e-6)


def test_lightning_goes_on_with_its_version(out: Path, tmp_path: Path) -> None:
    data = PackedDataModule(out, out / "validation")
    saving = ModelCheckpoint(tmp_path / "saved", "{step}", every_n_train_steps=1, save_top_k=-1)
    whole = fit(data, saving, max_epochs=1)
    folder = make_version(out)
    data = PackedDataModule(out, out / "validation")
    found = fit(data, checkpoint=tmp_path / "saved/step=1.ckpt", max_epochs=1)
    assert data.train_set.folder == folder
    assert data.val_set.folder == f"{folder}/validation"
    assert found.steps == whole.steps[1:]


def test_a_references_numbers_are_of_a_version(out: Path, model_folder: Path) -> None:
    options = {"is_fsdp_enabled": False, "ld_alpha": None, "accelerator": SimpleNamespace(mixed_precision="no")}
    reference = ReferenceLogps(SimpleNamespace(args=SimpleNamespace(process_index=0), **options), lambda _: "weights")
    model = AutoModelForCausalLM.from_pretrained(model_folder)
    before = PackedDataset(out, 0, 1)
    wanted = reference._names(before, model)
    folder = Path(make_version(out))
    assert wanted[0].parent == folder / "reference"
    dataset = PackedDataset(out, 0, 1)
    assert {path.name for path in reference._names(dataset, model)}.isdisjoint(path.name for path in wanted)
    reference._known[dataset.folder] = None
    assert reference.look_up(dataset, model)
    dataset = PackedDataset(out, 0, 1)
    dataset.load_state_dict(before.state_dict(1))
    assert reference._names(dataset, model) == wanted
    assert dataset.folder not in reference._known
