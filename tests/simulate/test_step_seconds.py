"""Predicted seconds of steps: in the set, beside each step of the loader, as `hbpack simulate` has them."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest

import packer_cli as hbpack
from packer_cli.cli.main import main
from packer_cli.commands.plan import predicted as with_prediction
from packer_cli.commands.rebalance import plan_in_force
from packer_cli.config.fields import GpuConfig
from packer_cli.config.gpu_model import load_gpu_model, model_values
from packer_cli.loader import PackedDataset
from packer_cli.loader.steps import packed_steps
from packer_cli.shards.plan_file import read_plan, read_plan_header
from packer_cli.simulate.epoch import simulate
from packer_cli.simulate.figures import with_step_seconds
from tests.cli_runner import run
from tests.measure.tiny import profile_of
from tests.reference import current_tree, home, tree

NUM_GPUS = 4
OPTIONS = ["--groups", "1k:1,2k:2", "--gpus", NUM_GPUS, "--global-tokens", "6k", "--workers", 1]


@pytest.fixture(scope="module")
def corpus(repo, tmp_path_factory):
    lines = (repo / "examples/sample/chats.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    folder = tmp_path_factory.mktemp("corpus")
    (folder / "old.jsonl").write_text("".join(lines[:200]), encoding="utf-8")
    (folder / "new.jsonl").write_text("".join(lines[200:250]), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def options(repo):
    sample = repo / "examples/sample"
    return [*OPTIONS, "--tokenizer", sample / "tokenizer", "--model", sample / "model", "--gpu", "h100"]


@pytest.fixture(scope="module")
def predicted(corpus, options, tmp_path_factory):
    out = tmp_path_factory.mktemp("predicted") / "OUT"
    done = run(main, "pack", corpus / "old.jsonl", *options, "--validation", "10%", "--epochs", 2, "--output", out)
    assert done.code == 0, done.stderr
    return out


def seconds_of(packed, rank, num_gpus, epoch=0):
    return [step.predicted_seconds for step in packed_steps(PackedDataset(packed, rank, num_gpus, epoch))]


def wanted_of(packed, repo, num_gpus, epoch=0, first_epoch=0):
    config = GpuConfig(model=str(repo / "examples/sample/model"), gpu="h100")
    model = load_gpu_model(config, num_gpus, "a test")
    return simulate(plan_in_force(home(packed)), model, epoch=epoch).step_seconds


def test_every_rank_knows_what_simulate_says(predicted, repo):
    for epoch in range(2):
        wanted = wanted_of(predicted, repo, NUM_GPUS, epoch)
        assert len(set(np.round(wanted, 6))) > 2
        for rank in range(NUM_GPUS):
            assert seconds_of(predicted, rank, NUM_GPUS, epoch) == pytest.approx(wanted, rel=1e-6)
    assert sorted(seconds_of(predicted, 0, NUM_GPUS, 2)) == sorted(seconds_of(predicted, 0, NUM_GPUS))
    assert set(seconds_of(predicted / "validation", 0, NUM_GPUS)) == {None}
    assert run(main, "verify", predicted).code == 0


def test_a_rebalanced_set_has_those_of_its_steps(predicted, repo, tmp_path):
    packed = shutil.copytree(predicted, tmp_path / "OUT", symlinks=True)
    assert run(main, "rebalance", packed, "--gpus", 2, "--from-step", 2).code == 0
    # One whole epoch is left, which follows the rest of the first one.
    found = seconds_of(packed, 1, 2, 1)
    assert found == pytest.approx(wanted_of(packed, repo, 2), rel=0.2)
    assert min(seconds_of(packed, 0, 2)) > 0
    assert sum(found) > 1.5 * sum(seconds_of(predicted, 0, NUM_GPUS, 1))
    assert run(main, "verify", packed).code == 0


def test_more_data_is_predicted_too(corpus, options, tmp_path):
    both = [corpus / "old.jsonl", corpus / "new.jsonl"]
    assert run(main, "pack", *both, *options, "--output", tmp_path / "whole").code == 0
    assert run(main, "pack", both[0], *options, "--output", tmp_path / "grown").code == 0
    assert run(main, "append", tmp_path / "grown", both[1], "--workers", 1).code == 0
    assert current_tree(tmp_path / "grown") == current_tree(tmp_path / "whole")
    assert None not in seconds_of(tmp_path / "grown", 0, NUM_GPUS)


def test_damage_is_repaired(predicted, tmp_path):
    packed = shutil.copytree(predicted, tmp_path / "OUT", symlinks=True)
    (home(packed) / "ranks/epoch-000/iterations.arrow").unlink()
    assert run(main, "verify", packed).code == 1
    assert run(main, "write", packed, "--workers", 1).code == 0
    assert tree(packed) == tree(predicted)


def test_a_model_that_is_not_there_is_asked_for(corpus, repo, tmp_path):
    sample = repo / "examples/sample"
    given = [corpus / "old.jsonl", *OPTIONS, "--tokenizer", sample / "tokenizer", "--output", tmp_path / "OUT"]
    for more, message in [
        (["--profile", tmp_path / "profile.json"], "No such file or directory; make a profile with hbpack profile"),
        (["--gpu", "h100"], "--model is missing"),
        (["--assume", "gradient_bytes=2"], "a prediction of time needs --model CONFIG.JSON --gpu NAME"),
    ]:
        done = run(main, "pack", *given, *more)
        assert done.code == 2
        assert message in done.stderr
        assert not (tmp_path / "OUT").exists()


def test_where_nothing_predicts_none_is_given(corpus, repo, tmp_path):
    """A profile of attention alone serves `--cp-sharding`; a set without any model keeps its bytes."""
    sample = repo / "examples/sample"
    given = [corpus / "old.jsonl", *OPTIONS, "--tokenizer", sample / "tokenizer"]
    profile = profile_of(tmp_path / "profile.json")  # It has no rows.
    done = run(main, "pack", *given, "--profile", profile, "--output", tmp_path / "OUT")
    assert done.code == 0
    assert "the steps get no predicted seconds: " in done.stderr
    assert run(main, "pack", *given, "--output", tmp_path / "plain").code == 0
    assert set(seconds_of(tmp_path / "OUT", 0, NUM_GPUS)) == {None}
    assert tree(tmp_path / "OUT") == tree(tmp_path / "plain")


@pytest.mark.parametrize("gpu", ["h100", "a100"])
def test_the_model_in_a_plan_predicts_as_the_one_that_was_given(repo, gpu):
    model = load_gpu_model(GpuConfig(model=str(repo / "examples/sample/model"), gpu=gpu), 8, "a test")
    values = json.loads(json.dumps(model_values(model)))
    plan = hbpack.plan([100, 900, 2000] * 50, groups="1k:1,2k:2", gpus=8).arrays
    wanted = simulate(plan, model).step_seconds
    assert with_step_seconds(plan, values).epochs[0].step_seconds == pytest.approx(wanted, rel=1e-6)


def test_a_model_of_another_release_is_left_out(predicted, capsys):
    header, (plan, _) = read_plan_header(predicted / "plan.arrow"), read_plan(predicted / "plan.arrow")
    other = header.config.model_copy(update={"gpu_model": {"cost": {}}})
    assert with_prediction(plan, other) is plan
    assert "the steps get no predicted seconds: it lacks memory" in capsys.readouterr().err


def test_a_rebalanced_set_is_not_lost_without_a_word(corpus, options, tmp_path):
    given = [corpus / "old.jsonl", *options, "--output", tmp_path / "OUT"]
    assert run(main, "pack", *given).code == 0
    assert run(main, "rebalance", tmp_path / "OUT", "--gpus", 2).code == 0
    done = run(main, "pack", *given, "--assume", "gemm_efficiency=0.6")
    assert done.code == 0
    assert (
        "the set was rebalanced to 2 GPUs, and this is another plan, for 4 GPUs; run hbpack rebalance" in done.stderr
    )
