"""Axolotl trains a packed set by its plugin: its own command and trainer, where they are installed."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

pytest.importorskip("axolotl")

import itertools

from axolotl.integrations.base import PluginManager
from transformers import AutoTokenizer

from packer_cli.errors import ConfigError, FormatError
from packer_cli.loader import PackedDataset
from packer_cli.loader.adapters.axolotl import HbpackPlugin
from packer_cli.loader.steps import packed_steps
from tests.cli_runner import run_process
from tests.ranks import torchrun_environment
from tests.reference import read_packs
from tests.tiny_model import naive_loss, tiny_llama

NUM_STEPS = 4
ROOT = Path(__file__).parents[2]
PLUGIN = "packer_cli.loader.adapters.axolotl.HbpackPlugin"


@pytest.fixture(scope="module")
def folder(repo, tmp_path_factory):
    """Sets for one and for two GPUs, and a model."""
    sample, folder = repo / "examples/sample", tmp_path_factory.mktemp("axolotl")
    lines = (sample / "chats.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)[:100]
    (folder / "chats.jsonl").write_text("".join(lines), encoding="utf-8")
    for gpus, groups in ((1, "512:1"), (2, "256:1,512:2")):
        options = ["--groups", groups, "--gpus", gpus, "--validation", "20%", "--global-tokens", "2k", "--workers", 1]
        words = ["pack", folder / "chats.jsonl", "--tokenizer", sample / "tokenizer", *options, "--output"]
        run_process([*map(str, words)], folder / f"OUT{gpus}", PYTHONPATH=str(ROOT))  # Beside the usual transformers.
    tiny_llama().save_pretrained(folder / "model")
    AutoTokenizer.from_pretrained(sample / "tokenizer").save_pretrained(folder / "model")
    return folder


def written(folder, num_gpus, **others):
    """A YAML as its users have it, with the two lines of the plugin."""
    config = {
        "base_model": "model",
        "datasets": [{"path": "chats.jsonl", "type": "chat_template"}],
        "sequence_len": 512,
        "sample_packing": True,
        "micro_batch_size": 2,
        "gradient_accumulation_steps": 4,
        "val_set_size": 0.1,
        "learning_rate": 1e-12,
        "optimizer": "adamw_torch",
        "attn_implementation": "sdpa",
        "bf16": False,
        "max_steps": NUM_STEPS,
        "logging_steps": 1,
        "eval_steps": NUM_STEPS,
        "save_steps": NUM_STEPS,
        "output_dir": f"runs{num_gpus}",
        "plugins": [PLUGIN],
        "hbpack": f"OUT{num_gpus}",
    }
    file = folder / f"axolotl{num_gpus}.yaml"
    file.write_text(yaml.safe_dump(config | others), encoding="utf-8")
    return file.name


def train(folder, num_gpus, *command):
    environment = torchrun_environment(str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")]))
    environment |= {"HF_HUB_OFFLINE": "1", "AXOLOTL_DO_NOT_TRACK": "1", "ACCELERATE_USE_CPU": "true"}
    done = subprocess.run(
        [sys.executable, "-m", *map(str, command)],
        cwd=folder, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:]
    state = folder / f"runs{num_gpus}/checkpoint-{NUM_STEPS}/trainer_state.json"
    logged = json.loads(state.read_text(encoding="utf-8"))["log_history"]
    losses = [row["loss"] for row in logged if "loss" in row]
    return losses, [row["eval_loss"] for row in logged if "eval_loss" in row], done.stdout


def samples_of(pack):
    borders = pack["cu_seqlens"].tolist()
    ids, mask = pack["input_ids"].tolist(), pack["loss_mask"].tolist()
    return [(ids[begin:end], mask[begin:end]) for begin, end in itertools.pairwise(borders)]


def mean_loss(packs):
    """Of samples one by one."""
    samples = [samples_of(pack) for pack in packs]
    return naive_loss(samples) / sum(sum(mask[1:]) for pack in samples for _, mask in pack)


def wanted_losses(folder, num_gpus):
    packs = {pack["pack_id"]: pack for pack in read_packs(folder / f"OUT{num_gpus}")}
    ids = [set() for _ in range(NUM_STEPS)]
    for rank in range(num_gpus):
        steps = packed_steps(PackedDataset(folder / f"OUT{num_gpus}", rank, num_gpus))
        for found, step in zip(ids, steps, strict=False):
            found |= {batch["pack_id"] for batch in step.batches} - {-1}
    return [mean_loss(packs[i] for i in sorted(each)) for each in ids]


@pytest.mark.parametrize("num_gpus", [1, 2])
def test_the_loss_is_that_of_the_samples(folder, num_gpus):
    config = written(folder, num_gpus)
    if num_gpus == 1:
        command = ["axolotl.cli.train", config]
    else:
        script = Path(__file__).with_name("axolotl_on_cpus.py")
        command = ["torch.distributed.run", "--standalone", "--nproc-per-node", num_gpus, script, config]
    losses, eval_losses, output = train(folder, num_gpus, *command)
    wanted = wanted_losses(folder, num_gpus)
    assert losses == pytest.approx(wanted, rel=1e-4)
    assert eval_losses[-1] == pytest.approx(mean_loss(read_packs(folder / f"OUT{num_gpus}/validation")), rel=1e-4)
    pack = read_packs(folder / "OUT1")[0]
    merged = naive_loss([[(pack["input_ids"].tolist(), pack["loss_mask"].tolist())]])
    assert merged != pytest.approx(naive_loss([samples_of(pack)]), rel=1e-3)
    ignored = "gradient_accumulation_steps, micro_batch_size, sample_packing"
    assert f"no effect, as the plan of OUT{num_gpus} decides: {ignored}" in output


def registered(**config):
    HbpackPlugin().register(config)
    return config


def test_the_yaml_may_name_no_data(folder):
    path = str(folder / "OUT1")
    config = registered(hbpack=path)
    assert config["datasets"] == [{"path": path, "type": "completion"}]
    assert config["val_set_size"] > 0
    given = SimpleNamespace(hbpack=path, num_epochs=1.5, max_steps=None)
    loaded = HbpackPlugin().load_datasets(given)
    assert (loaded.train_dataset, loaded.eval_dataset) == (path, f"{path}/validation")
    assert loaded.total_num_steps == math.ceil(1.5 * PackedDataset(path, 0, 1).num_steps)
    given.max_steps = 2
    assert HbpackPlugin().load_datasets(given).total_num_steps == 2
    assert HbpackPlugin().get_training_args(given)["max_steps"] == 2


def test_what_cannot_be_trained_is_refused_before_the_model_is_loaded(folder, monkeypatch):
    """And not where no data is needed, as when Axolotl merges an adapter."""
    assert registered(hbpack="gone", val_set_size=0.1)["val_set_size"] == 0.1
    with pytest.raises(FormatError, match="'gone' is not a folder: name the OUT folder"):
        HbpackPlugin().load_datasets(SimpleNamespace(hbpack="gone"))
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(ConfigError, match="was planned for 1 GPUs, but world_size is 4"):
        HbpackPlugin().load_datasets(SimpleNamespace(hbpack=str(folder / "OUT1")))


def test_without_validation_there_is_no_evaluation(folder, caplog):
    given = {"val_set_size": 0.1, "evals_per_epoch": 2, "early_stopping_patience": 3}
    config = registered(hbpack=str(folder / "OUT1/validation"), **given)
    assert (config["val_set_size"], config["evals_per_epoch"], config["early_stopping_patience"]) == (0.0, None, None)
    ignored = "early_stopping_patience, evals_per_epoch, val_set_size"
    assert f"has no validation set; see hbpack pack --validation: {ignored}" in caplog.text


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({}, "hbpack is not given: name a packed set in the YAML"),
        ({"hbpack": "OUT", "rl": "dpo"}, "rl is not supported on packed rows; leave it out"),
        ({"hbpack": "OUT", "streaming": True}, "streaming is not read; leave it out"),
        ({"hbpack": "OUT", "tensor_parallel_size": 2}, "tensor_parallel_size is not supported on packed rows"),
        ({"hbpack": "OUT", "test_datasets": [{}]}, "test_datasets is not read; set samples aside with hbpack pack"),
    ],
)
def test_what_does_not_fit_is_refused(config, message):
    with pytest.raises(ConfigError, match=message):
        registered(**config)


def test_an_older_release_is_refused(monkeypatch):
    monkeypatch.setattr("packer_cli.loader.adapters.trainer_arguments.version", lambda package: "0.18.2")
    with pytest.raises(
        ConfigError, match=r"^axolotl 0.18.2 is installed, and HbpackPlugin needs 0.19 or later; upgrade"
    ):
        registered(hbpack="OUT")


def test_another_trainer_is_refused(monkeypatch):
    other = SimpleNamespace(get_trainer_cls=lambda cfg: type("KDTrainer", (), {}))
    monkeypatch.setitem(PluginManager.get_instance().plugins, "other", other)
    with pytest.raises(ConfigError, match="KDTrainer, of another plugin, does not train packed sets"):
        HbpackPlugin().get_trainer_cls({})
    with pytest.raises(ConfigError, match="Trainer, of another plugin, does not train packed sets"):
        HbpackPlugin().post_trainer_create({}, type("Trainer", (), {})())
