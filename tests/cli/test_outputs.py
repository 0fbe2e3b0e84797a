"""What `--json` prints is what its published schema describes, and the last line says what to do next."""

from __future__ import annotations

import json
import re
import shutil

import jsonschema
import numpy as np
import pytest

from packer_cli.cli import console
from packer_cli.cli.main import COMMANDS, cli, main
from tests.cli.conftest import GROUPS
from tests.cli_runner import run

MODEL = {
    "model_type": "llama", "num_hidden_layers": 4, "hidden_size": 256, "num_attention_heads": 8,
    "num_key_value_heads": 4, "intermediate_size": 1024, "vocab_size": 2048,
}  # fmt: skip


@pytest.fixture(scope="module")
def place(sample, tokenizer, tmp_path_factory):
    """A folder with a packed set `out`, a token store `store`, lengths and a model."""
    folder = tmp_path_factory.mktemp("outputs")
    (folder / "config.json").write_text(json.dumps(MODEL))
    np.save(folder / "lengths.npy", np.random.default_rng(0).integers(10, 3000, 300))
    words = ("--tokenizer", tokenizer, "--workers", 1)
    assert run(main, "tokenize", sample / "journals.jsonl", *words, "-o", folder / "store").code == 0
    done = run(main, "pack", sample / "journals.jsonl", *words, *GROUPS, "-o", folder / "out")
    assert done.code == 0, done.stderr
    return folder


GPU = ("--model", "config.json", "--gpu", "h100:flops=1e12")
TOKENIZER = ("--tokenizer", "SAMPLE/tokenizer", "--workers", 1)
RUNS = [
    ("set", "plan", ["plan", "store", *GROUPS, *GPU]),
    ("set", "write", ["write", "out", "--workers", 1]),
    ("tokenize", "tokenize", ["tokenize", "SAMPLE/journals.jsonl", *TOKENIZER, "-o", "store"]),
    ("stats", "stats", ["stats", "out"]),
    ("stats", "stats", ["stats", "lengths.npy"]),
    ("stats", "stats", ["stats", "lengths.npy", *GROUPS, "--align", 64, "--cost", "1,100"]),
    ("stats", "stats", ["stats", "lengths.npy", "--strategy", "wlb", "--gpus", 8]),
    ("compare", "compare", ["compare", "lengths.npy", *GROUPS, "--algorithms", "bfs,wrap", *GPU, "--workers", 1]),
    ("simulate", "simulate", ["simulate", "out", *GPU]),
    ("report", "report", ["report", "lengths.npy", "-o", "NEW.html"]),
    ("report", "report", ["report", "out", *GPU, "--strategies", "naive", "-o", "NEW.html", "--workers", 1]),
    ("groups", "groups", ["groups", "lengths.npy", *GPU, "--gpus", 8]),
    ("verify", "verify", ["verify", "out", "--workers", 1]),
    ("status", "status", ["status", "out"]),
    ("show", "show", ["show", "out"]),
    ("show", "show", ["show", "out", "--sample", 3]),
    ("export", "export", ["export", "out", "--to", "parquet", "-o", "NEW.d", "--workers", 1]),
    ("rebalance", "rebalance", ["rebalance", "out", "--gpus", 16]),
    ("find", "find", ["find", "out", "journals.jsonl:1"]),
    ("versions", "versions", ["versions", "out"]),
    ("versions", "restore", ["restore", "out@1"]),
    ("versions", "prune", ["prune", "out", "--keep", 9]),
    ("init", "init", ["init", "SAMPLE/chats.jsonl", "-o", "NEW"]),
    ("doctor", "doctor", ["doctor"]),
]


@pytest.fixture
def words(place, sample, monkeypatch, tmp_path):
    monkeypatch.chdir(place)

    def fill(arguments):
        return [
            str(word).replace("SAMPLE", str(sample)).replace("NEW", str(tmp_path / "new.yaml")) for word in arguments
        ]

    return fill


@pytest.mark.parametrize(("name", "command", "arguments"), RUNS)
def test_the_schema_describes_what_is_printed(repo, words, name, command, arguments):
    schema = json.loads((repo / "schemas" / "output" / f"{name}.schema.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    done = run(main, *words(arguments), "--json")
    assert done.code == 0, done.stderr
    jsonschema.validate(json.loads(done.stdout), schema)
    options = {parameter.name: parameter for parameter in cli.get_command(None, command).params}
    assert f" schemas/output/{name}.schema.json " in options["as_json"].help


def test_a_schema_refuses_what_it_does_not_describe(repo, words):
    schema = json.loads((repo / "schemas" / "output" / "status.schema.json").read_text())
    value = json.loads(run(main, *words(["status", "out"]), "--json").stdout)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**value, "more": 1}, schema)


@pytest.mark.parametrize(("name", "command", "arguments"), RUNS)
def test_the_last_line_says_what_is_next(words, name, command, arguments):
    done = run(main, *words(arguments))
    assert done.code == 0, done.stderr
    assert ". Next: " in done.stdout.splitlines()[-1]


def test_the_next_report_predicts_what_was_predicted(words):
    """A packed set does not keep the model, so the line repeats it."""
    plan, with_gpu = ["plan", "store", *GROUPS, "--seed", 7], f"hbpack report store {' '.join(GPU)}"
    for arguments, command in (
        ([*plan, *GPU], "hbpack write store"),
        (["write", "store", "--workers", 1], "hbpack report store"),
        ([*plan, *GPU], with_gpu),
        (["simulate", "store", *GPU, "--step-seconds", 0.5], f"{with_gpu} --step-seconds 0.5"),
    ):
        done = run(main, *words(arguments))
        assert done.code == 0, done.stderr
        assert command in re.split(r"Next: |, or |, ", done.stdout.splitlines()[-1])


def test_every_command_has_json(repo):
    for name in COMMANDS:
        assert "as_json" in {parameter.name for parameter in cli.get_command(None, name).params}, name
    schemas = {path.name.partition(".")[0] for path in (repo / "schemas" / "output").iterdir()}
    assert {name for name, _, _ in RUNS} == schemas - {"dry-run"}  # Of an option, which has tests of its own.


def test_a_prediction_where_there_is_a_model(words):
    plan = ["plan", "store", *GROUPS, *GPU]
    prediction = json.loads(run(main, *words(plan), "--json").stdout)["prediction"]
    lines = run(main, *words(plan)).stdout.splitlines()
    assert lines[-2].startswith("  predicted epoch on 8 GPUs: ")
    assert f"{prediction['saves']['speedup']:.2f} times as fast as naive packing (" in lines[-2]
    assert " times as fast as padded batches (" in lines[-2]
    without = run(main, *words(["plan", "store", *GROUPS]))
    assert "predicted epoch" not in without.stdout


@pytest.mark.parametrize(
    ("arguments", "num_tables", "num_more"),
    [
        (["stats", "out"], 3, 0),
        (["stats", "out", "--groups", "512:1,1k:1,2k:1,4k:2,8k:4,16k:8", "--gpus", 8], 5, 1),
        (["simulate", "out", *GPU, "--step-seconds", 1, "--pad-to", "row"], 1, 0),
        (["groups", "lengths.npy", *GPU, "--gpus", 8], 2, 0),
        (["compare", "lengths.npy", *GROUPS, "--algorithms", "bfs", *GPU, "--columns", "all", "--workers", 1], 2, 1),
    ],
)
def test_tables_fit_the_terminal(words, monkeypatch, arguments, num_tables, num_more):
    """At 100 columns few break in two; what follows then has a heading of its own."""
    monkeypatch.setattr(console, "is_terminal", lambda: True)
    for columns in (80, 100):
        monkeypatch.setenv("COLUMNS", str(columns))
        lines = run(main, *words(arguments)).stdout.splitlines()
        assert max(map(len, lines[:-1])) <= columns
    assert sum(line.startswith(" ───") for line in lines) == num_tables
    assert lines.count("More columns of the same rows") == num_more


def test_a_plan_and_its_baseline_stand_together(words, monkeypatch):
    monkeypatch.setattr(console, "is_terminal", lambda: True)
    monkeypatch.setenv("COLUMNS", "80")
    groups = "512:1,1k:1,2k:1,4k:2,8k:4,16k:8"
    lines = run(main, *words(["stats", "out", "--groups", groups, "--gpus", 8])).stdout.splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("Balance and padding"))
    assert lines[start + 2].split()[:2] == ["all", "baseline"]
    assert lines.index("More columns of the same rows") > start


def test_a_table_of_text_breaks_its_lines(place, tmp_path, monkeypatch):
    monkeypatch.setattr(console, "is_terminal", lambda: True)
    monkeypatch.setenv("COLUMNS", "80")
    folder = tmp_path / ("long" * 20)
    shutil.copytree(place / "store", folder)
    (folder / "plan.arrow").unlink(missing_ok=True)
    (folder / "tokens" / "tokens.json").write_text("x")
    done = run(main, "status", folder)
    table = done.stdout.splitlines()[1:-1]
    assert max(map(len, table)) <= 80
    assert f"'{folder}/tokens/tokens.json'isdamaged(" in "".join("".join(table).split())
    assert done.stdout.endswith(
        f"The tokens of {folder} are missing. Next: run the same hbpack tokenize or hbpack pack again\n"
    )
