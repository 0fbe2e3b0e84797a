"""`hbpack simulate`, and the predicted times of `hbpack compare`."""

from __future__ import annotations

import json

import numpy as np
import pytest

from packer_cli.config.gpu_model import read_shape
from packer_cli.cost.analytic import analytic_model, parse_gpu
from packer_cli.shards.plan_file import read_plan
from packer_cli.simulate.epoch import PARTS, simulate
from packer_cli.tables.compare import COLUMNS
from tests.cli.conftest import GROUPS
from tests.mixed_lengths import save_lengths

CONFIG = {
    "model_type": "llama",
    "num_hidden_layers": 4,
    "hidden_size": 256,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "intermediate_size": 1024,
    "vocab_size": 2048,
}
GIVE = "--model CONFIG.JSON --gpu NAME (such as h100), or --profile FILE of hbpack profile"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "config.json"
    path.write_text(json.dumps(CONFIG))
    return path


@pytest.fixture
def gpu(model):
    """One that is slow, so that attention and tokens count beside what is constant."""
    return ("--model", model, "--gpu", "h100:flops=1e12")


@pytest.fixture(scope="module")
def lengths(tmp_path_factory):
    return save_lengths(tmp_path_factory.mktemp("lengths") / "lengths.npy")


def simulated(hbpack, *arguments):
    done = hbpack("simulate", *arguments, "--json")
    assert done.code == 0, done.stderr
    return json.loads(done.stdout)


def test_a_packed_set_beside_its_baseline(hbpack, pack, chats, sample, gpu, model, tmp_path):
    assert pack(chats, sample / "journals.jsonl").code == 0
    out = tmp_path / "out"
    result = simulated(hbpack, out, *gpu)
    assert result == simulated(hbpack, out / "plan.arrow", *gpu)
    overall, baseline = result["overall"], result["baseline"]
    plan = read_plan(out / "plan.arrow")[0]
    expected = simulate(plan, analytic_model(read_shape(model), parse_gpu("h100:flops=1e12"), 8))
    assert overall["seconds"] == pytest.approx(expected.seconds)
    assert [group["name"] for group in result["groups"]] == ["1k:1", "8k:4"]
    for figures in (overall, baseline, *result["groups"]):
        assert list(figures["split"]) == list(PARTS)
        assert sum(figures["split"].values()) == pytest.approx(figures["seconds"])
    assert sum(group["gpu_hours"] for group in result["groups"]) == pytest.approx(overall["gpu_hours"])
    assert result["saves"]["gpu_days"] == pytest.approx(baseline["gpu_days"] - overall["gpu_days"])
    best = result["naive_at_best"]
    assert best["seconds"] <= baseline["seconds"]
    assert result["saves_over_naive"]["speedup"] == pytest.approx(best["seconds"] / overall["seconds"])
    assert result["predicted_with"]["source"] == "analytic"
    done = hbpack("simulate", out, *gpu)
    lines = done.stdout.splitlines()
    assert lines[0] == "Predicted epoch on 8 GPUs, and where their time goes"
    assert [line.split("  ")[0].strip() for line in lines[4:10]] == [
        "1k:1", "8k:4", "all", "naive", "baseline", "padded",
    ]  # fmt: skip
    assert result["padded"]["seconds"] > overall["seconds"]
    assert lines[-1].startswith("An epoch takes ")
    assert lines[-2].startswith(
        "  Predicted from the shape of the model (4.98M parameters) and the data sheet of h100:"
    )


def test_a_set_that_was_rebalanced_is_as_it_is_now(hbpack, pack, chats, sample, gpu, tmp_path):
    assert pack(chats, sample / "journals.jsonl").code == 0
    out = tmp_path / "out"
    before = simulated(hbpack, out, *gpu)["overall"]
    assert hbpack("rebalance", out, "--gpus", 16, "--from-step", 3).code == 0
    after = simulated(hbpack, out, *gpu)["overall"]
    assert (before["num_gpus"], after["num_gpus"]) == (8, 16)
    assert after["seconds"] < before["seconds"]
    manifest = json.loads((out / "hbpack.json").read_text())
    assert after["num_iterations"] == manifest["metrics"]["overall"]["num_iterations"]


def test_padding_and_steps(hbpack, pack, chats, sample, gpu, tmp_path):
    assert pack(chats, sample / "journals.jsonl", "--global-tokens", "64k").code == 0
    out = tmp_path / "out"
    plain = simulated(hbpack, out, *gpu)["overall"]
    assert {name for name, seconds in plain["split"].items() if not seconds} == {
        "recompute",
        "bubbles",
        "sync",
        "steps",
    }
    padded = simulated(hbpack, out, *gpu, "--pad-to", "capacity")["overall"]
    assert padded["split"]["padding"] > plain["split"]["padding"]
    assert padded["split"]["compute"] == pytest.approx(plain["split"]["compute"])
    steps = simulated(hbpack, out, *gpu, "--step-seconds", 2)["overall"]
    assert steps["seconds"] == pytest.approx(plain["seconds"] + 2 * plain["num_steps"])
    assert plain["num_steps"] < plain["num_iterations"]


def test_pipelines_wait_for_their_longest_micro_batch(hbpack, pack, chats, sample, gpu, tmp_path):
    options = ("--global-tokens", "64k", "--groups", "1k,4k", "--parallel", "tp=2,pp=2")
    assert pack(chats, sample / "journals.jsonl", *options).code == 0
    piped = simulated(hbpack, tmp_path / "out", *gpu)["overall"]
    assert piped["num_gpus"] == 8
    assert min(piped["split"][part] for part in ("bubbles", "communication", "compute")) > 0
    assert piped["split"]["constant"] == 0  # No weights are gathered.


@pytest.mark.usefixtures("rows_of_this_process")
def test_strategies_are_those_of_compare_the_fastest_first(hbpack, lengths, gpu):
    rows = ("--algorithms", "bfs,isf/none,sorted")
    result = simulated(hbpack, lengths, *GROUPS, *gpu, *rows)
    names = [row["name"] for row in result["rows"]]
    assert set(names) == {"bfs", "isf/none", "sorted", "naive", "isf/none@longest", "padded/none@longest"}
    seconds = [row["simulation"]["overall"]["seconds"] for row in result["rows"]]
    assert seconds == sorted(seconds)
    assert [row["name"] for row in result["rows"] if row["is_own"]] == ["bfs"]
    baseline = next(row for row in result["rows"] if row["name"] == "naive")
    assert baseline["saves"] == {"gpu_days": 0, "share": 0, "speedup": 1}
    for row in result["rows"]:
        saved = baseline["simulation"]["overall"]["gpu_days"] - row["simulation"]["overall"]["gpu_days"]
        assert row["saves"]["gpu_days"] == pytest.approx(saved)
    compared = json.loads(hbpack("compare", lengths, *GROUPS, *gpu, *rows, "--json").stdout)
    assert {row["name"]: row["simulation"] for row in compared["rows"]} == {
        row["name"]: row["simulation"] for row in result["rows"] if row["kind"] != "baseline"
    }
    done = hbpack("simulate", lengths, *GROUPS, *gpu, *rows)
    assert done.stdout.startswith("Predicted epochs of 2,000 samples, ")
    assert [line.split()[0] for line in done.stdout.splitlines()[4:10]] == names
    slowest = simulated(hbpack, lengths, *GROUPS, *gpu, *rows, "--sort", "-epoch")["rows"]
    assert [row["name"] for row in slowest] == names[::-1]


@pytest.mark.usefixtures("rows_of_this_process")
def test_the_baseline_among_the_rows_is_not_planned_twice(hbpack, lengths, gpu):
    one_group = ("--groups", "8k:4", "--gpus", 8, "--packing", "isf", "--balance", "none")
    result = simulated(hbpack, lengths, *one_group, *gpu, "--algorithms", "isf,bfd")
    assert sorted(row["name"] for row in result["rows"]) == ["bfd", "isf", "naive", "padded"]
    assert {row["name"]: row["saves"]["speedup"] == 1 for row in result["rows"]} == {
        "naive": True,  # At its best.
        "isf": False,
        "bfd": False,
        "padded": False,
    }


@pytest.mark.usefixtures("rows_of_this_process")
def test_compare_shows_predicted_times_where_it_has_a_model(hbpack, lengths, gpu):
    arguments = ("compare", lengths, *GROUPS, "--algorithms", "bfs,isf/none@longest")
    with_times = hbpack(*arguments, *gpu, "--sort", "epoch", "--columns", "all").stdout
    assert " epoch " in with_times
    assert "GPU-days" in with_times
    assert "GPU-days" not in hbpack(*arguments).stdout
    assert hbpack(*arguments, "--sort", "-gpu-days") == (2, "", f"error: --sort -gpu-days needs {GIVE}\n")
    assert {"epoch", "gpu-days"} <= {column.name for column in COLUMNS}


PLAN = "give --groups and --gpus"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["5.npy"], f"hbpack simulate needs {GIVE}"),
        (["5.npy", "--model", "m"], f"hbpack simulate needs {GIVE}; --gpu is missing"),
        (["MODEL"], "INPUT is required"),
        (["a", "b", "MODEL"], "several inputs are a corpus, which needs --tokenizer, --groups and --gpus"),
        (
            ["nowhere", "MODEL"],
            "'nowhere' does not exist; name a packed data set or a plan, or what to plan with --groups and --gpus",
        ),
        (["5.npy", "MODEL"], f"'5.npy' is not a packed data set or plan; {PLAN} to plan it in every way"),
        ([".", "MODEL"], f"'.' is not a packed data set or plan; {PLAN} to plan it in every way"),
        (["5.npy", "--groups", "1k", "MODEL"], "--gpus is required"),
        (["nowhere", *GROUPS, "MODEL", "--sort", "speed"], "--sort: there is no column 'speed'; columns: "),
        (
            ["5.npy", "--groups", "1k:3", "--gpus", 6, "MODEL"],
            "SP degree 3 is unknown to the model of the GPUs, which knows 1, 2, 4; plan with one of these, or give ",
        ),
    ],
)  # fmt: skip
def test_wrong_usage(hbpack, tmp_path, monkeypatch, gpu, arguments, message):
    monkeypatch.chdir(tmp_path)
    np.save("5.npy", np.array([5], dtype=np.int32))
    words = [word for argument in arguments for word in (gpu if argument == "MODEL" else (argument,))]
    code, stdout, stderr = hbpack("simulate", *words)
    assert (code, stdout) == (2, "")
    assert stderr.startswith(f"error: {message}")
    assert stderr.count("\n") == 1


def test_options_of_plans_for_what_is_planned(hbpack, pack, chats, gpu, tmp_path):
    assert pack(chats).code == 0
    out = tmp_path / "out"
    for option in ("--gpus", "--packing", "--tokenizer", "--algorithms"):
        done = hbpack("simulate", out, *gpu, option, "8")
        message = f"{option} is for making plans, and '{out}' is already planned; {PLAN}, or leave {option} out"
        assert done == (2, "", f"error: {message}\n")
    (out / "plan.arrow").write_bytes(b"nothing")
    done = hbpack("simulate", out, *gpu)
    assert (done.code, done.stdout) == (1, "")
    assert done.stderr.startswith(f"error: '{out / 'plan.arrow'}' is damaged")


def test_a_trace_has_the_times_of_the_simulation(hbpack, pack, chats, sample, gpu, tmp_path):
    assert pack(chats, sample / "journals.jsonl").code == 0
    out, trace = tmp_path / "out", tmp_path / "trace.json"
    done = hbpack("simulate", out, *gpu, "--step-seconds", 2, "--trace", trace, "--trace-steps", 3, "--json")
    assert done.code == 0
    figures = json.loads(done.stdout)["overall"]
    said = f"wrote '{trace}': the first 3 of {figures['num_steps']} steps; open it in Perfetto (ui.perfetto.dev) or in"
    assert done.stderr == f"{said} chrome://tracing\n"
    data = json.loads(trace.read_text())
    assert data["displayTimeUnit"] == "ms"
    assert data["otherData"]["made_by"] == "hbpack simulate"
    events = data["traceEvents"]
    assert [event["name"] for event in events if event.get("cat") == "step"] == ["step 0", "step 1", "step 2"]
    assert {event["args"]["name"] for event in events if event["name"] == "process_name"} == {
        "schedule", "node 0 (GPUs 0 to 7)",
    }  # fmt: skip
    again = hbpack("simulate", out, *gpu, "--trace", trace, "--trace-steps", 1000)
    assert again.code == 0
    events = json.loads(trace.read_text())["traceEvents"]
    seconds = sum(event["dur"] for event in events if event.get("cat") == "step") / 1e6
    assert seconds == pytest.approx(simulated(hbpack, out, *gpu)["overall"]["seconds"])


def test_a_trace_is_refused_where_there_is_no_one_plan_and_no_place(hbpack, pack, chats, gpu, lengths, tmp_path):
    done = hbpack("simulate", lengths, *GROUPS, *gpu, "--trace", tmp_path / "trace.json")
    assert done == (
        2, "", "error: --trace takes one plan; name a packed data set or a plan, and leave out --groups\n"
    )  # fmt: skip
    assert pack(chats).code == 0
    other = tmp_path / "notes.json"
    other.write_text("{}")
    done = hbpack("simulate", tmp_path / "out", *gpu, "--trace", other)
    assert (done.code, other.read_text()) == (2, "{}")
    assert done.stderr == f"error: --trace: '{other}' already exists and is not a trace; name another file\n"
