"""Each example trains as one plain process would, sample by sample, also after it was stopped and resumed."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.cli_runner import pack_words, run_process
from tests.examples.launcher import Launcher

pytest.importorskip("torch")

from tests.examples.reference import LEARNING_RATE, Trajectory, distance, steps_of, train
from tests.ranks import torchrun_environment
from tests.reference import rank_rows

KEPT, STOP, AGAIN, END = 2, 3, 5, 6
"""The step of the last checkpoint before a crash, of the crash, of an orderly end, and the last one."""

TRAINERS = {
    "accelerate_loop": "accelerate",
    "composer_trainer": "composer",
    "lightning_module": "lightning",
    "pytorch_fsdp": "torch",
    "torchtitan_style": "torch",
    "transformers_trainer": "accelerate",
    "trl_sft": "trl",
}
RECIPES = {"megatron_dataset", "olmo_core_trainer", "veomni_trainer"}
"""Scripts with options of their own; test_recipes.py tests them."""
PIPELINES = {"pipeline_parallel", "pipeline_stages", "unlike_pipelines"}
"""Scripts with a model of their own, and what they share; test_pipelines.py tests them."""
PREFERENCES = {"dpo_loop", "reward_loop"}
"""Scripts for sets of pairs; test_preferences.py tests them."""
OWN_GPU = "192:1,384:1:1"
SHARED = "192:1,384:2:1"
FREE = "200:1,384:1:1"
"""For replicas that do not run in lockstep."""
WITHOUT_LOCKSTEP = ["--lockstep", "1", "--cost", "1,50"]
EPOCH = 4

Train = Callable[[Path], Trajectory]


@pytest.fixture(scope="session")
def wanted(model_folder: Path) -> Train:
    """The reference run over a packed set."""
    return cache(lambda packed: train(packed, model_folder, END))


@pytest.fixture
def run(repo: Path, launcher: Launcher, tmp_path: Path) -> Callable[..., str]:
    def run(name: str, *arguments: object, num_ranks: int = 2, fails: bool = False) -> str:
        if find_spec(TRAINERS[name]) is None:
            pytest.skip(f"{TRAINERS[name]} is not installed: see docs/trainers.md")
        script = repo / "examples" / f"{name}.py"
        codes, text = launcher.run(script, *arguments, num_ranks=num_ranks, logs=tmp_path / "logs")
        assert any(codes) if fails else not any(codes), text
        return text

    return run


def lines_of(text: str) -> list[tuple[int, float, float]]:
    """Step, loss and gradient norm of each line that rank 0 wrote."""
    found = re.findall(r"^step (\d+) loss (\S+) grad_norm (\S+) tokens/s \d+$", text, re.MULTILINE)
    return [(int(step), float(loss), float(norm)) for step, loss, norm in found]


def assert_same(lines: list[tuple[int, float, float]], wanted: Trajectory, num_steps: int) -> None:
    assert [step for step, _, _ in lines] == list(range(1, num_steps + 1))
    assert [loss for _, loss, _ in lines] == pytest.approx(wanted.losses[:num_steps], rel=1e-5)
    assert [norm for _, _, norm in lines] == pytest.approx(wanted.norms[:num_steps], rel=1e-4)


@pytest.mark.parametrize(("groups", "degrees"), [(OWN_GPU, {1}), (SHARED, {1, 2})])
def test_the_sets_hold_what_the_trainers_get_wrong(pack: Callable[..., Path], groups: str, degrees: set[int]) -> None:
    steps = steps_of(pack(groups, 2))
    assert len(steps) == 2 * EPOCH
    assert KEPT < EPOCH < AGAIN, "no resumed run begins within an epoch and crosses into another"
    used = steps[:END]
    assert len({len(iterations) for iterations in used}) > 2, "all steps have equally many iterations"
    packs = [pack for iterations in used for slots in iterations for pack in slots]
    assert {} in packs, "no filler"
    assert {pack["sp_size"] for pack in packs if pack} == degrees
    assert {pack["checkpoint_layers"] for pack in packs if pack} == {0, 1}
    assert sum(len(pack["sample_ids"]) > 1 for pack in packs if pack) > len(packs) / 2
    assert len({pack["num_loss_tokens"] for pack in packs if pack}) > len(packs) / 4


@pytest.mark.parametrize("groups", [OWN_GPU, SHARED])
def test_merged_samples_would_train_otherwise(
    pack: Callable[..., Path], wanted: Train, model_folder: Path, groups: str
) -> None:
    """Ten times farther off than `assert_same` lets the examples be."""
    packed = pack(groups, 2)
    merged, right = train(packed, model_folder, 2, is_merged=True), wanted(packed)
    for i in range(2):
        assert merged.losses[i] != pytest.approx(right.losses[i], rel=1e-4)
        assert merged.norms[i] != pytest.approx(right.norms[i], rel=1e-3)


@pytest.mark.parametrize(
    ("name", "groups", "options"),
    [
        pytest.param("pytorch_fsdp", OWN_GPU, ["--parallel", "fsdp"], marks=pytest.mark.slow),
        pytest.param("pytorch_fsdp", FREE, ["--parallel", "ddp"], marks=pytest.mark.slow),
        ("pytorch_fsdp", SHARED, ["--parallel", "fsdp"]),
        pytest.param("transformers_trainer", OWN_GPU, [], marks=pytest.mark.slow),
        # Two processes of these run in test_packed_trainer and test_packed_lightning, too.
        pytest.param("transformers_trainer", SHARED, [], marks=pytest.mark.slow),
        pytest.param("trl_sft", OWN_GPU, [], marks=pytest.mark.slow),
        ("trl_sft", SHARED, []),
        ("accelerate_loop", SHARED, []),
        pytest.param("lightning_module", SHARED, [], marks=pytest.mark.slow),
        ("torchtitan_style", OWN_GPU, []),
        ("composer_trainer", OWN_GPU, []),
    ],
)
def test_two_ranks_stopped_and_resumed_train_as_one_process(
    run: Callable[..., str],
    pack: Callable[..., Path],
    wanted: Train,
    model_folder: Path,
    other_model: Path,
    tmp_path: Path,
    name: str,
    groups: str,
    options: list[str],
) -> None:
    packed, output = pack(groups, 2, *(WITHOUT_LOCKSTEP if groups == FREE else [])), tmp_path / "run"
    options = [*options, "--output", str(output), "--lr", str(LEARNING_RATE), "--save-every", str(KEPT)]
    lines = lines_of(run(name, packed, "--model", model_folder, "--max-steps", STOP, *options))
    assert distance(output / "final", wanted(packed), STOP) < 1e-3
    # As if it had crashed: what it saved at its end is gone, and the checkpoint before is the newest.
    (last,) = output.glob(f"*-{STOP}*")
    shutil.rmtree(last) if last.is_dir() else last.unlink()
    lines = lines[:KEPT]
    # It begins with other weights, which the checkpoint must replace.
    options += ["--model", str(other_model), "--resume"]
    lines += lines_of(run(name, packed, "--max-steps", AGAIN, *options))
    lines += lines_of(run(name, packed, "--max-steps", END, *options))
    assert_same(lines, wanted(packed), END)
    assert distance(output / "final", wanted(packed), END) < 1e-3


@pytest.mark.parametrize(
    "name", ["transformers_trainer", "trl_sft", "accelerate_loop", "lightning_module", "composer_trainer"]
)
def test_a_single_process_needs_no_torchrun(
    run: Callable[..., str],
    pack: Callable[..., Path],
    wanted: Train,
    model_folder: Path,
    tmp_path: Path,
    name: str,
) -> None:
    packed = pack(OWN_GPU, 1)
    options = ["--output", tmp_path / "run", "--lr", LEARNING_RATE, "--model", model_folder]
    assert_same(lines_of(run(name, packed, "--max-steps", 2, *options, num_ranks=1)), wanted(packed), 2)
    assert distance(tmp_path / "run" / "final", wanted(packed), 2) < 1e-3


@pytest.mark.parametrize("name", ["composer_trainer", "torchtitan_style"])
def test_shared_rows_are_refused_where_they_would_train_wrong(
    run: Callable[..., str], pack: Callable[..., Path], model_folder: Path, tmp_path: Path, name: str
) -> None:
    options = ["--model", model_folder, "--max-steps", 1, "--output", tmp_path / "run"]
    text = run(name, pack(SHARED, 2), *options, fails=True)
    assert "groups that share rows" in text
    assert not lines_of(text)


@pytest.mark.parametrize("name", ["pytorch_fsdp", "accelerate_loop", "lightning_module", "transformers_trainer"])
def test_a_checkpoint_that_is_not_there_is_told(
    run: Callable[..., str], pack: Callable[..., Path], model_folder: Path, tmp_path: Path, name: str
) -> None:
    options = ["--model", model_folder, "--output", tmp_path / "run"]
    text = run(name, pack(OWN_GPU, 2), *options, "--resume", fails=True)
    assert re.search(rf"no checkpoint in '?{tmp_path / 'run'}", text), text


def test_a_tokenizer_that_is_not_there_is_asked_for(
    run: Callable[..., str], repo: Path, model_folder: Path, tmp_path: Path
) -> None:
    tokenizer = shutil.copytree(repo / "examples" / "sample" / "tokenizer", tmp_path / "tokenizer")
    words = pack_words(repo, "journals.jsonl")
    words[words.index("--tokenizer") + 1] = str(tokenizer)
    packed = run_process([*words, "--groups", "1k", "--gpus", "1", "--output"], tmp_path / "OUT")
    shutil.rmtree(tokenizer)
    options = ["--model", model_folder, "--max-steps", 1, "--output", tmp_path / "run"]
    text = run("trl_sft", packed, *options, num_ranks=1, fails=True)
    assert f"the set's tokenizer ({tokenizer}) is not on this machine: give --tokenizer PATH" in text


def test_fsdp_refuses_ranks_that_do_not_meet(
    run: Callable[..., str], pack: Callable[..., Path], model_folder: Path, tmp_path: Path
) -> None:
    """It would hang: they run unlike numbers of micro-batches, here within a step."""
    packed = pack(FREE, 2, *WITHOUT_LOCKSTEP)
    counts = [Counter(row["step"] for row in rank_rows(packed, rank)) for rank in range(2)]
    assert counts[0] != counts[1]
    options = ["--model", model_folder, "--max-steps", 1, "--output", tmp_path / "run"]
    text = run("pytorch_fsdp", packed, *options, fails=True)
    assert "was planned with --lockstep 1: its ranks run different numbers of micro-batches" in text


@pytest.mark.slow  # It imports everything three times.
def test_torchrun_starts_it(
    repo: Path, pack: Callable[..., Path], wanted: Train, model_folder: Path, tmp_path: Path
) -> None:
    """The command line of the docs."""
    done = subprocess.run(
        [
            sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
            repo / "examples" / "pytorch_fsdp.py", pack(OWN_GPU, 2), "--model", model_folder, "--max-steps", "2",
            "--lr", str(LEARNING_RATE), "--output", tmp_path,
        ],
        capture_output=True,
        text=True,
        env=torchrun_environment(str(repo)),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert_same(lines_of(done.stdout), wanted(pack(OWN_GPU, 2)), 2)


def test_the_page_of_trainers_names_every_example(repo: Path) -> None:
    names = {path.stem for path in (repo / "examples").glob("*.py")}
    assert names == set(TRAINERS) | RECIPES | PIPELINES | PREFERENCES
    text = (repo / "docs" / "trainers.md").read_text(encoding="utf-8")
    assert set(re.findall(r"examples/(\w+)\.py", text)) == names
