"""Every trainer on sets whose rows ranks share, as one process trains sample by sample (`make test-trainers`).

With plain SGD, as Adam would divide errors by themselves where gradients are small. In float64 the trainers agree to
ten digits, so nothing is left out, counted twice or rounded on the way.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("accelerate")
pytest.importorskip("lightning")
pytest.importorskip("peft")
pytest.importorskip("trl")

import torch
from safetensors.torch import load_file
from transformers import LlamaConfig, LlamaForCausalLM

from packer_cli.cli.main import main
from tests.cli_runner import run
from tests.examples.exact_trainers import MOST_NORM, SAVED, TOKENIZER, make_model, sgd
from tests.examples.launcher import Launcher
from tests.examples.reference import Trajectory, steps_of, train

pytestmark = [pytest.mark.slow, pytest.mark.trainers]

STOP, END = SAVED + 1, 6
"""The steps of a crash and of the end."""
CHARACTERS = 7000
"""Of a text: about 2,000 tokens, as attention in float64 takes long on CPUs."""
SCRIPT = Path(__file__).with_name("exact_trainers.py")
TRAINERS = ("trainer", "sft", "accelerate", "lightning", "fsdp")
PLANS = {
    2: ["--groups", "1k:1,8k:2:1", "--global-tokens", "12k"],
    4: ["--groups", "1k:1:1,8k:2", "--global-tokens", "24k"],
    6: [
        "--strategy",
        "flexsp",
        "--groups",
        "1500:1,2k:2,3k:3",
        "--global-tokens",
        "16k",
        "--seed",
        "1",
        "--gpu",
        "h100",
    ],
}
"""Options of the set for a number of processes."""
CASES = ((2, "float64", ""), (4, "float32", "lora"), (6, "float64", ""))
SAME = {"float64": 1e-10, "float32": 1e-5}


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six heads, which degrees 2 and 3 divide, and two of keys and values."""
    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=1024, hidden_size=48, intermediate_size=64, num_hidden_layers=2, num_attention_heads=6,
        num_key_value_heads=2, initializer_range=0.2,
    )  # fmt: skip
    folder = tmp_path_factory.mktemp("model")
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def pack(repo: Path, model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Path]:
    sample, folder = repo / "examples" / "sample", tmp_path_factory.mktemp("sets")
    texts = [json.loads(line)["text"][:CHARACTERS] for line in (sample / "journals.jsonl").read_text().splitlines()]
    journals = folder / "journals.jsonl"
    journals.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))

    @cache
    def make(num_gpus: int) -> Path:
        output, plan = folder / f"for-{num_gpus}", PLANS[num_gpus]
        model = ["--model", model_folder / "config.json"] if "--gpu" in plan else []
        done = run(
            main, "pack", sample / "chats.jsonl@0.1", journals, "--tokenizer", TOKENIZER,
            "--gpus", num_gpus, "--overflow", "split", "--output", output, *plan, *model,
        )  # fmt: skip
        assert done.code == 0, done.stderr
        return output

    return make


@pytest.fixture(scope="module")
def wanted(pack: Callable[[int], Path], model_folder: Path) -> Callable[[int, str, str], Trajectory]:
    """One process, its samples one by one."""

    @cache
    def make(num_gpus: int, dtype: str, lora: str) -> Trajectory:
        model = make_model(str(model_folder), dtype, has_lora=bool(lora))
        return train(pack(num_gpus), model, END, optimizer=sgd(model), most_norm=MOST_NORM)

    return make


def test_the_sets_mix_degrees(pack: Callable[[int], Path]) -> None:
    def degrees(num_gpus: int) -> list[set[int]]:
        steps = steps_of(pack(num_gpus))[:END]
        return [{each["sp_size"] for each in slots if each} for step in steps for slots in step]

    assert set().union(*degrees(2)) == set().union(*degrees(4)) == {1, 2}
    assert {1, 2, 3} in degrees(6)


@pytest.mark.parametrize(("num_ranks", "dtype", "lora"), CASES)
@pytest.mark.parametrize("trainer", TRAINERS)
def test_it_trains_as_one_process_crashed_and_resumed(
    launcher: Launcher,
    pack: Callable[[int], Path],
    wanted: Callable[[int, str, str], Trajectory],
    model_folder: Path,
    tmp_path: Path,
    trainer: str,
    num_ranks: int,
    dtype: str,
    lora: str,
) -> None:
    output = tmp_path / "run"
    output.mkdir()

    def run(max_steps: int, *ways: str) -> list[tuple[str, str, str]]:
        arguments: tuple[Any, ...] = (trainer, pack(num_ranks), model_folder, output, dtype, max_steps, *ways)
        codes, text = launcher.run(SCRIPT, *arguments, num_ranks=num_ranks, logs=tmp_path / f"logs-{max_steps}")
        assert set(codes) == {0}, text
        return re.findall(r"^step (\d+) loss (\S+) norm (\S+)$", text, re.MULTILINE)

    ways = [lora] if lora else []
    lines = run(STOP, *ways)[:SAVED]
    for last in output.glob(f"checkpoint-*{STOP}*"):  # Some save at an orderly end.
        shutil.rmtree(last) if last.is_dir() else last.unlink()
    lines += run(END, *ways, "resume")
    right = wanted(num_ranks, dtype, lora)
    assert [int(step) for step, _, _ in lines] == list(range(1, END + 1))
    assert [float(loss) for _, loss, _ in lines] == pytest.approx(right.losses, rel=SAME[dtype])
    assert [float(norm) for _, _, norm in lines] == pytest.approx(right.norms, rel=SAME[dtype])
    assert min(right.norms) > 1.1 * MOST_NORM  # So that clipping counts.
    found, first, last = load_file(output / "trained.safetensors"), right.weights[0], right.weights[END]
    assert {name.removeprefix("module.") for name in found} == set(last)
    for name, weight in last.items():
        assert float((found[name] - weight).norm() / (weight - first[name]).norm()) < 10 * SAME[dtype]
