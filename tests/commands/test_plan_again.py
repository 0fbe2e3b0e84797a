"""`hbpack plan` of a set that was planned before keeps what its plan records, and says what changes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import packer_cli as hbpack
from packer_cli.cli.main import main
from packer_cli.errors import ConfigError
from packer_cli.loader import PackedDataset
from packer_cli.shards.plan_file import read_plan_header
from tests.cli_runner import run
from tests.commands.test_validation import counts, texts
from tests.reference import tree

OPTIONS = ("--validation", 12, "--overflow", "drop", "--seed", 7, "--global-tokens", "8k", "--fill", "longest")
MODEL = {"model_type": "llama", "num_hidden_layers": 2, "hidden_size": 128, "num_attention_heads": 4}
MODEL |= {"num_key_value_heads": 4, "intermediate_size": 256, "vocab_size": 1000}


@pytest.fixture(scope="module")
def first(chats, pack, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("first") / "out"
    pack(out, chats, *OPTIONS)
    return out


def plan(source: Path, output: Path, *words: object, code: int = 0) -> list[str]:
    """Lines on standard error."""
    done = run(main, "plan", source, "--output", output, *words)
    assert done.code == code, done.stderr
    return done.stderr.splitlines()


def config(folder: Path):
    return read_plan_header(folder / "plan.arrow").config


def test_other_gpus_change_nothing_else(first, tmp_path):
    lines = plan(first, tmp_path / "new", "--gpus", 4)
    bound = config(first).validation
    assert lines[0] == (
        f"changed: --gpus 4 (was 8); as in {first}: --groups 256:1,1k:4, --fill longest, --overflow drop, "
        f"--global-tokens 8192, --seed 7, --validation {bound}"
    )
    assert config(tmp_path / "new") == config(first).model_copy(update={"gpus": 4})
    assert run(main, "write", tmp_path / "new", "--workers", 1).code == 0
    assert texts(tmp_path / "new") == texts(first)
    assert texts(tmp_path / "new/validation") == texts(first / "validation")
    assert not texts(tmp_path / "new").keys() & texts(first / "validation").keys()


def test_without_options_the_plan_is_as_it_was(first, tmp_path):
    out = Path(shutil.copytree(first, tmp_path / "out", symlinks=True))
    before = tree(out)
    done = run(main, "plan", out)
    assert "the plan is up to date" in done.stderr
    assert "changed" not in done.stderr
    assert tree(out) == before
    plan(out, tmp_path / "new")
    assert config(tmp_path / "new") == config(out)


def test_in_place_the_validation_set_stays(first, tmp_path):
    out = Path(shutil.copytree(first, tmp_path / "out", symlinks=True))
    assert run(main, "plan", out, "--gpus", 12).code == 0
    assert run(main, "write", out, "--workers", 1).code == 0
    assert counts(out / "validation")["samples"] == counts(first / "validation")["samples"]
    assert texts(out / "validation") == texts(first / "validation")


def test_defaults_are_had_back(first, tmp_path):
    words = ("--validation", 0, "--global-tokens", 0, "--max-samples", 0, "--seed", 0, "--overflow", "split")
    line = plan(first, tmp_path / "new", *words, "--fill", "balanced")[0]
    assert "--validation none (was 0x" in line
    assert "--global-tokens none (was 8192)" in line
    assert line.endswith(f"; as in {first}: --groups 256:1,1k:4, --gpus 8")
    found = config(tmp_path / "new")
    assert (found.validation, found.global_tokens, found.max_samples) == (None, None, None)
    assert found.names_given() == {"groups", "gpus"}
    assert not (tmp_path / "new/validation").exists()


def test_other_groups_keep_what_the_groups_had(chats, pack, tmp_path):
    pack(tmp_path / "out", chats, "--parallel", "tp=2,pp=2", "--align", 16, "--groups", "512:1")
    plan(tmp_path / "out", tmp_path / "new", "--groups", "256:1,2k:2")
    assert [(group.tp_size, group.pp_size, group.align) for group in config(tmp_path / "new").groups] == [
        (2, 2, 16)
    ] * 2
    plan(tmp_path / "out", tmp_path / "new", "--parallel", "tp=4")
    assert [str(group.layout) for group in config(tmp_path / "new").groups] == ["sp1-tp4"]
    line = plan(tmp_path / "out", tmp_path / "new", "--groups", "512:1", "--parallel", "tp=1", "--align", 1)[0]
    assert line.startswith("changed: --groups 512:1 (was 512:1 align=16 tp_size=2 pp_size=2); as in ")


def test_what_another_strategy_lacks_is_left_out(chats, pack, tmp_path):
    words = ("--max-samples", 9, "--curriculum-steps", 2, "--step-mix", "stratified", "--packing", "isf:rounds=7")
    pack(tmp_path / "out", chats, *words, "--fill", "longest", "--seed", 5, "--global-tokens", "8k")
    line = plan(tmp_path / "out", tmp_path / "new", "--strategy", "wlb")[0]
    assert line.startswith("changed: --strategy wlb (was balanced), --groups 1k:4 (was 256:1,1k:4), --packing delay")
    for lost in ("--max-samples none (was 9)", "--curriculum-steps none (was 2)", "--fill none (was longest)"):
        assert lost in line
    assert line.endswith(f"as in {tmp_path / 'out'}: --gpus 8, --global-tokens 8192, --seed 5")


def test_what_was_predicted_stays_with_what_it_was_predicted_from(chats, pack, tmp_path):
    model = tmp_path / "config.json"
    model.write_text(json.dumps(MODEL))
    pack(tmp_path / "out", chats, "--strategy", "flexsp:all", "--model", model, "--gpu", "h100")
    model.unlink()
    plan(tmp_path / "out", tmp_path / "new", "--gpus", 4)
    before, after = config(tmp_path / "out"), config(tmp_path / "new")
    assert after == before.model_copy(update={"gpus": 4})
    assert after.group_costs
    lines = plan(tmp_path / "out", tmp_path / "other", "--groups", "2k:2", code=2)
    assert lines[0].startswith("error: --strategy flexsp:all needs --model CONFIG.JSON --gpu NAME (such as h100), or")
    plan(tmp_path / "out", tmp_path / "other", "--strategy", "balanced", "--groups", "512:1,1k:4")
    assert config(tmp_path / "other").gpu_model == before.gpu_model


def test_layouts_that_were_found_make_room_for_groups(chats, pack, tmp_path):
    """Hydraulis records many of one capacity."""
    model = tmp_path / "config.json"
    model.write_text(json.dumps(MODEL))
    words = ("--strategy", "hydraulis", "--groups", "1k:4", "--global-tokens", "8k", "--model", model, "--gpu", "h100")
    pack(tmp_path / "out", chats, *words)
    assert len(config(tmp_path / "out").groups) > 1
    plan(tmp_path / "out", tmp_path / "new", "--seed", 5)
    assert config(tmp_path / "new") == config(tmp_path / "out").model_copy(update={"seed": 5})
    line = plan(tmp_path / "out", tmp_path / "new", "--groups", "auto", code=2)[0]
    assert line.startswith("error: --groups auto needs --model")
    line = plan(tmp_path / "out", tmp_path / "new", "--strategy", "balanced")[0]
    assert line.startswith("changed: --strategy balanced (was hydraulis), --groups 1k:")
    words = ("--strategy", "balanced", "--groups", "auto", "--model", model, "--gpu", "h100")
    lines = plan(tmp_path / "out", tmp_path / "new", *words)
    chosen = config(tmp_path / "new").groups
    assert lines[0].startswith("chose --groups ")
    assert f"--groups {','.join(map(str, chosen))} (was 1k:" in lines[1]


def test_options_must_fit_those_that_are_kept(first, tmp_path):
    (line,) = plan(first, tmp_path / "new", "--gpus", 6, code=2)
    assert line.startswith(
        "error: --gpus 6: a replica has 4 GPUs (sp4), which must divide it; choose 4 or 8, or plan with"
    )
    (line,) = plan(first, tmp_path / "new", "--cp-sharding", "document", code=2)
    assert line.startswith("error: --cp-sharding has no effect without context parallelism")


def test_a_kept_option_without_effect_is_no_error(first, tmp_path):
    plan(first, tmp_path / "new", "--groups", "2k:1")
    assert config(tmp_path / "new").fill == "longest"


def test_a_damaged_plan_is_as_the_manifest_says(first, tmp_path):
    out = Path(shutil.copytree(first, tmp_path / "out", symlinks=True))
    (out / "plan.arrow").write_bytes(b"")
    plan(out, tmp_path / "new", "--gpus", 4)
    assert config(tmp_path / "new") == config(first).model_copy(update={"gpus": 4})


def test_a_store_alone_records_nothing(chats, sample, tmp_path):
    words = ("tokenize", chats, "--tokenizer", sample / "tokenizer", "--workers", 1, "--output", tmp_path / "out")
    assert run(main, *words).code == 0
    assert plan(tmp_path / "out", tmp_path / "new", "--gpus", 4, code=2) == ["error: --groups is required"]


def test_a_validation_set_knows_which_training_holds_it(first, tmp_path):
    """By counts of what the two manifests set aside, with weights, after a rebalance, and whatever `first` was."""
    for name, words in {"none": ["--validation", 0], "more": ["--validation", "30%"], "same": ["--gpus", 4]}.items():
        plan(first, tmp_path / name, *words)
        assert run(main, "write", tmp_path / name, "--workers", 1).code == 0
    assert run(main, "rebalance", tmp_path / "none", "--gpus", 4).code == 0
    aside = PackedDataset(first / "validation", 0, 8)
    for name in ("more", "same"):
        num_gpus = 4 if name == "same" else 8
        aside.require_held_out(PackedDataset(tmp_path / name, 0, num_gpus))
    number = counts(first / "validation")["samples"]
    with pytest.raises(ConfigError, match=f"holds {number} samples that were set aside, and {number} of them are in"):
        aside.require_held_out(PackedDataset(tmp_path / "none", 0, 4))
    with pytest.raises(ConfigError, match=r"plan the training set with --validation 30%$"):
        PackedDataset(tmp_path / "more/validation", 0, 8).require_held_out(PackedDataset(first, 0, 8))
    PackedDataset(first, 0, 8).require_held_out(PackedDataset(tmp_path / "none", 0, 4))  # It was not set aside.


def test_the_api_keeps_them_too(first, tmp_path):
    written = hbpack.plan(first, output=tmp_path / "new", gpus=4)
    in_memory = hbpack.plan(first, gpus=4)
    assert written.config == in_memory.config == config(tmp_path / "new")
    assert in_memory.arrays.packs.pieces.tolist() == written.arrays.packs.pieces.tolist()
    assert hbpack.plan(first, output=tmp_path / "new", validation=0).config.validation is None
    with pytest.raises(ConfigError, match="samples are set aside by their tokens"):
        hbpack.plan(first, validation=0)
