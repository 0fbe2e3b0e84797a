"""`hbpack groups`, and `--groups auto` in the commands that plan."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from packer_cli.config import PlanConfig, validate
from packer_cli.groups.choice import NOT_WORTH_A_GROUP

MODEL = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
}
TABLE_19 = Path(__file__).parent.parent / "groups" / "data" / "hbp-table-19.json"
NEEDS = "needs --model CONFIG.JSON --gpu NAME (such as h100), or --profile FILE of hbpack profile"


@pytest.fixture
def model(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(MODEL))
    return path


@pytest.fixture
def lengths(tmp_path):
    """Chats and documents."""
    random = np.random.default_rng(0)
    values = np.concatenate([random.integers(50, 900, 4000), random.integers(1000, 100_000, 200), [131072]])
    np.save(tmp_path / "lengths.npy", values)
    return tmp_path / "lengths.npy"


@pytest.fixture
def auto(model):
    return ("--groups", "auto", "--model", model, "--gpu", "h100", "--gpus", 32)


@pytest.fixture
def groups(hbpack, lengths, model):
    """`hbpack groups` with a model."""

    def call(*arguments):
        return hbpack("groups", lengths, "--model", model, "--gpu", "h100", "--gpus", 32, *arguments)

    return call


@pytest.fixture
def packed(hbpack, pack, chats, model, tmp_path):
    """`hbpack pack --groups auto` of a few chats: (what it said, its manifest)."""

    def call(*arguments):
        done = pack(
            chats, "--groups", "auto", "--model", model, "--gpu", "h100", "--overflow", "truncate", *arguments
        )  # fmt: skip
        assert done.code == 0, done.stderr
        return done, json.loads((tmp_path / "out" / "hbpack.json").read_text())

    return call


def groups_of(plan):
    return ",".join(map(str, validate(PlanConfig, plan).groups))


def test_the_tables(groups):
    done = groups()
    assert (done.code, done.stderr) == (0, "")
    assert done.stdout.startswith("4,201 samples, ")
    lines = done.stdout.splitlines()
    assert " ".join(lines[2].split()) == "length SP layers iteration, s s a million tokens memory, GiB"
    rows = [line.split() for line in lines if line.startswith(" 32k ")]
    assert [row[1] for row in rows] == ["1", "2", "4", "8", "16", "32"]
    assert "OOM" in rows[0]
    assert sum("best of its length" in " ".join(row) for row in rows) == 1
    assert sum(line.split()[6:7] in (["best"], ["best,"]) and "of its" not in line for line in lines) == 1
    assert "  predicted epoch on 32 GPUs: " in done.stdout
    for name in ("HBP's algorithm 1", "the longest alone", "best single group", "best of 2", "best of 3"):
        assert f"\n {name} " in done.stdout
    assert sum(line.endswith(" chosen") and "k:" in line for line in lines[-10:]) == 1


def test_json(groups):
    result = json.loads(groups("--json").stdout)
    assert result["groups"].endswith("128k:16")
    assert result["gpu_hours"] == pytest.approx(result["seconds"] * 32 / 3600, rel=1e-5)
    assert result["samples"] == 4201
    assert 0 >= min(each["gain"] for each in result["alternatives"]) >= -NOT_WORTH_A_GROUP
    assert result["predicted_with"]["source"] == "analytic"
    chosen = {(row["length"], row["sp_size"]) for row in result["candidates"] if "chosen" in row["mark"]}
    assert chosen == {(group.capacity, group.sp_size) for group in PlanConfig(groups=result["groups"], gpus=32).groups}


def test_limits(groups):
    assert "," not in json.loads(groups("--max-groups", 1, "--json").stdout)["groups"]
    assert json.loads(groups("--max-length", "64k", "--json").stdout)["longest"] == 65536
    dropped = json.loads(groups("--max-length", "64k", "--overflow", "drop", "--json").stdout)
    assert dropped["samples"] < 4201
    assert dropped["longest"] < 65536
    by_hbp = json.loads(groups("--algorithm", "hbp", "--json").stdout)
    assert by_hbp["groups"] == by_hbp["alternatives"][0]["groups"]


def test_measured_rows_that_are_too_few_for_a_model(hbpack, lengths):
    done = hbpack("groups", lengths, "--profile", TABLE_19, "--gpus", 32, "--algorithm", "hbp")
    assert done.code == 0
    assert "\n  --groups 16k:1:28,128k:8:28\n" in done.stdout
    assert "  the profile's rows are too few to predict an epoch; hbpack profile says what to measure\n" in done.stdout
    assert "predicted epoch" not in done.stdout
    assert hbpack("groups", lengths, "--profile", TABLE_19, "--gpus", 32).code == 2
    fewer = hbpack("groups", lengths, "--profile", TABLE_19, "--gpus", 8, "--algorithm", "hbp")
    assert (fewer.code, fewer.stdout) == (2, "")
    assert fewer.stderr == (
        f"error: {str(TABLE_19)!r} is of a model whose weights 32 GPUs share, so on 8 there is less memory left than "
        "it says; profile with --gpus 8, or plan for 32\n"
    )
    steps = ("--strategy", "hydraulis", "--global-tokens", "1m")
    planned = hbpack("plan", lengths, "--groups", "64k", "--profile", TABLE_19, "--gpus", 8, *steps, "--output", "out")
    assert (planned.code, planned.stderr) == (2, fewer.stderr)


def test_a_corpus(hbpack, chats, tokenizer, model):
    done = hbpack(
        "groups", chats, "--tokenizer", tokenizer, "--workers", 1, "--model", model, "--gpu", "h100", "--gpus", 8
    )  # fmt: skip
    assert done.code == 0, done.stderr
    assert done.stdout.startswith("40 samples, ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--gpus", 8], f"hbpack groups {NEEDS}"),
        (["--gpus", 8, "--gpu", "h100"], f"hbpack groups {NEEDS}; --model is missing"),
        (["--gpus", 8, "--model", "M"], f"hbpack groups {NEEDS}; --gpu is missing"),
        (["--model", "M", "--gpu", "h100"], "--gpus is required"),
        (["--gpus", 8, "--max-groups", 0], "--max-groups must be at least 1, got 0"),
        (["--gpus", 8, "--model", "M", "--profile", "P"],
         "--profile replaces --model and --gpu; hbpack groups takes one or the other"),
        (["--gpus", 8, "--profile", "P"], "'P': No such file or directory; make a profile with hbpack profile"),
    ],
)  # fmt: skip
def test_wrong_usage(hbpack, lengths, arguments, message):
    assert hbpack("groups", lengths, *arguments) == (2, "", f"error: {message}\n")


def test_no_sample_is_short_enough(groups):
    done = groups("--max-length", 49, "--overflow", "drop")
    assert (done.code, done.stdout) == (1, "")
    assert done.stderr.splitlines()[-1] == (
        "error: there is nothing to plan: no sample is left; add data, or raise --max-length"
    )


def test_what_does_not_fit(hbpack, lengths, model):
    done = hbpack("groups", lengths, "--model", model, "--gpu", "h100:memory=40GiB", "--gpus", 8)
    assert (done.code, done.stdout) == (2, "")
    assert done.stderr.startswith("error: the longest sample has 131,072 tokens, and at most ")
    assert "--overflow split or drop\n" in done.stderr
    most = done.stderr.split("--max-length ")[1].split()[0]
    small = ("--gpu", "h100:memory=40GiB", "--gpus", 8, "--max-length", most)
    done = hbpack("groups", lengths, "--model", model, *small, "--json")
    assert done.code == 0
    assert json.loads(done.stdout)["longest"] == int(most)


@pytest.mark.usefixtures("rows_of_this_process")
def test_stats_and_compare_choose_too(hbpack, lengths, auto):
    done = hbpack("stats", lengths, *auto, "--json")
    stats = json.loads(done.stdout)
    compared = hbpack("compare", lengths, *auto, "--algorithms", "bfs,/none@longest", "--workers", 1, "--json")
    assert compared.code == 0, compared.stderr
    comparison = json.loads(compared.stdout)
    assert stats["group_choice"] == comparison["group_choice"]
    assert [group["name"] for group in stats["groups"]] == [
        f"g{g}-{group['capacity']}-sp{group['sp_size']}" for g, group in enumerate(comparison["config"]["groups"])
    ]
    assert compared.stderr.startswith(f"chose --groups {groups_of(comparison['config'])}: ")
    table = hbpack("compare", lengths, *auto, "--algorithms", "bfs,/none@longest", "--workers", 1)
    assert f"groups {groups_of(comparison['config'])} on 32 GPUs" in table.stdout


def test_a_set_records_the_choice(packed, model, tmp_path):
    done, manifest = packed()
    choice = manifest["config"]["group_choice"]
    assert f"chose --groups {choice['groups']}: " in done.stderr
    assert groups_of(manifest["config"]["plan"]) == choice["groups"]
    assert choice["predicted_with"]["gpu"]["name"] == "h100"
    # What was chosen with decides no bytes beside the choice: not by which name the model was given.
    assert not {"model", "gpu", "profile", "max_groups"} & set(manifest["config"]["plan"])
    (tmp_path / "folder").mkdir()
    model.rename(tmp_path / "folder" / "config.json")
    again, same = packed("--model", tmp_path / "folder")
    assert "the plan is up to date" in again.stderr
    assert "the shards are up to date" in again.stderr
    assert same == manifest


def test_another_model_or_gpu_plans_anew(packed, model):
    _, first = packed()
    done, second = packed("--gpu", "h100:memory=40GB")
    assert "planned " in done.stderr
    assert first["fingerprint"] != second["fingerprint"]
    model.write_text(json.dumps({**MODEL, "num_hidden_layers": 16}))
    _, third = packed("--gpu", "h100:memory=40GB")
    assert len({each["fingerprint"] for each in (first, second, third)}) == 3


def test_the_same_inputs_give_the_same_bytes(hbpack, packed, tmp_path):
    packed()
    before = (tmp_path / "out" / "plan.arrow").read_bytes()
    (tmp_path / "out" / "plan.arrow").unlink()
    packed()
    assert (tmp_path / "out" / "plan.arrow").read_bytes() == before


def test_given_groups_know_nothing_of_a_choice(hbpack, pack, chats, model, tmp_path):
    def manifest(*arguments):
        assert pack(chats, *arguments).code == 0
        return json.loads((tmp_path / "out" / "hbpack.json").read_text())

    first, predicted = manifest(), manifest("--model", model, "--gpu", "h100")
    for each in (first, predicted):
        assert "group_choice" not in each["config"]
    assert predicted["config"]["plan"].pop("gpu_model")
    assert first["config"]["plan"].pop("gpu_model") is None
    assert [predicted[name] for name in ("config", "counts", "metrics")] == [
        first[name] for name in ("config", "counts", "metrics")
    ]


def test_auto_from_a_config_file(hbpack, chats, tokenizer, model, tmp_path):
    config = tmp_path / "config.yaml"
    config.write_text(
        f"inputs: {chats}\ntokenizer: {tokenizer}\noutput: {tmp_path}/out\ngroups: auto\nmodel: {model}\ngpu: h100\n"
        "gpus: 8\nmax-groups: 1\nworkers: 1\n"
    )
    assert hbpack("pack", "--config", config).code == 0
    assert len(json.loads((tmp_path / "out" / "hbpack.json").read_text())["groups"]) == 1


@pytest.mark.parametrize("command", ["pack", "plan", "stats", "compare"])
def test_auto_without_a_model(hbpack, lengths, chats, tokenizer, tmp_path, command):
    arguments = {"pack": (chats, "--tokenizer", tokenizer, "-o", tmp_path / "out"), "plan": (tmp_path / "store",)}
    done = hbpack(command, *arguments.get(command, (lengths,)), "--groups", "auto", "--gpus", 8)
    assert done == (2, "", f"error: --groups auto {NEEDS}\n")
    assert not (tmp_path / "out").exists()


def test_a_plan_of_a_store(hbpack, pack, chats, auto, tmp_path):
    assert pack(chats).code == 0
    done = hbpack("plan", tmp_path / "out", *auto, "--output", tmp_path / "other")
    assert done.code == 0
    assert done.stderr.startswith("chose --groups ")
    assert hbpack("plan", tmp_path / "out", *auto, "--output", tmp_path / "other").stderr.endswith(
        "the plan is up to date\n"
    )


def test_nothing_to_choose_for(pack, chats, auto, lines_of, tmp_path):
    nothing = lines_of({"messages": "none"})
    done = pack(nothing, *auto)
    assert (done.code, done.stdout) == (1, "")
    why = f"every record was rejected, see '{tmp_path}/out/rejected.jsonl'"
    assert done.stderr.endswith(f"error: there is nothing to plan: {why}\n")
    done = pack(chats, *auto, "--max-length", 5, "--overflow", "drop", output=tmp_path / "other")
    assert (done.code, done.stdout) == (1, "")
    assert len((tmp_path / "other" / "rejected.jsonl").read_text().splitlines()) == 40
    done = pack(chats, *auto, "--max-length", 5, "--overflow", "error", output=tmp_path / "third")
    assert (done.code, done.stdout) == (1, "")
    assert "chats.jsonl:1: the sample has " in done.stderr
