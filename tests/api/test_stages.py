"""The functions of the stages: the bytes and the results of the commands, without a word."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import packer_cli as hbpack
from packer_cli.engine import progress
from packer_cli.format.records import json_values
from tests.api.conftest import GROUPS
from tests.reference import tree

WORDS = ("--groups", GROUPS["groups"], "--gpus", GROUPS["gpus"])
ONE = ("--workers", 1)


def json_of(result: Any) -> Any:
    return json.loads(json.dumps(json_values(result)))


def without_times(versions: Any) -> Any:
    return {**versions, "versions": [{**each, "time": ""} for each in versions["versions"]]}


@pytest.fixture
def options(sample) -> dict[str, Any]:
    return {"tokenizer": sample / "tokenizer", "workers": 1}


@pytest.fixture
def out(packed, tmp_path) -> Path:
    """A copy of the set, in a folder `out`."""
    shutil.copytree(packed.path, tmp_path / "out", symlinks=True)
    return tmp_path / "out"


@pytest.fixture
def twin(packed, tmp_path) -> Path:
    """Another copy for the command, in a folder of the same name."""
    shutil.copytree(packed.path, tmp_path / "twin" / "out", symlinks=True)
    return tmp_path / "twin" / "out"


@pytest.fixture
def of_command(command, monkeypatch):
    """What `hbpack ARGUMENTS --json` prints, run in the folder of `out`, which it names so."""

    def call(out: Path, *arguments: object, code: int = 0) -> Any:
        monkeypatch.chdir(out.parent)
        done = command(*arguments, "--json")
        assert done.code == code, done.stderr
        return json.loads(done.stdout)

    return call


@pytest.fixture
def in_folder(monkeypatch):
    """Run a function in the folder of a set, which it names as the command does."""

    def call(out: Path, function: Any, *arguments: Any, **options: Any) -> Any:
        monkeypatch.chdir(out.parent)
        return json_of(function(*arguments, **options))

    return call


def test_the_stages_make_the_set_of_pack(packed, corpus, options, of_command, in_folder, tmp_path):
    out, twin = tmp_path / "out", tmp_path / "twin" / "out"
    twin.parent.mkdir()
    found = in_folder(out, hbpack.tokenize, corpus, output=Path("out"), **options)
    words = ("tokenize", corpus, "--tokenizer", options["tokenizer"], *ONE, "--output", "out")
    assert found == of_command(twin, *words)
    assert found["is_complete"]
    assert tree(out) == tree(twin)
    hbpack.plan(out, output=out, **GROUPS)
    written = hbpack.write(out, workers=1)
    assert written.manifest() == packed.manifest()
    assert tree(out) == tree(packed.path)


def test_an_array_is_complete_with_its_last_task(packed, corpus, options, tmp_path):
    first, second = (hbpack.tokenize(corpus, output=tmp_path, shard=f"{i}/2", **options) for i in range(2))
    assert (first.is_complete, second.is_complete) == (False, True)
    hbpack.plan(tmp_path, output=tmp_path, **GROUPS)
    assert hbpack.write(tmp_path, shard="1/2", workers=1) is None
    array = hbpack.status(tmp_path, stage="shards").stages[0].array
    assert array is not None
    assert (array.done, array.missing) == ((1,), [0])
    assert hbpack.write(tmp_path, shard="0/2", workers=1).manifest() == packed.manifest()
    assert hbpack.export(tmp_path, to="trl", output=tmp_path / "trl", shard="0/2", workers=1).is_complete is False
    assert hbpack.export(tmp_path, to="trl", output=tmp_path / "trl", shard="1/2", workers=1).is_complete


def test_append(out, twin, sample, of_command):
    journals = sample / "journals.jsonl"
    made = hbpack.append(out, journals, workers=1, keep=1)
    of_command(twin, "append", "out", journals, *ONE, "--keep", 1)
    assert tree(out) == tree(twin)
    assert made.manifest().counts.records > 100
    assert [each.number for each in hbpack.versions(out).versions if each.num_bytes is not None] == [2]


def test_status(out, twin, of_command, in_folder):
    assert in_folder(out, hbpack.status, "out") == of_command(twin, "status", "out")
    shutil.rmtree(out / "tokens")
    (out / "hbpack.json").unlink()
    found = hbpack.status(out)
    assert not found.complete
    assert [each.state for each in found.stages][2] == "missing"
    assert json_of(found)["stages"] == of_command(out, "status", "out", code=1)["stages"]


def test_verify(out, twin, of_command, in_folder):
    for each in (out, twin):
        (shard, *_) = sorted(each.glob("*/shards/*/*.arrow"))
        with shard.open("r+b") as file:
            file.seek(1000)
            file.write(b"damage")
    found = in_folder(out, hbpack.verify, "out", workers=1, fast=True)
    assert found == of_command(twin, "verify", "out", *ONE, "--fast", code=1)
    assert len(found["damaged"]) == 1
    assert hbpack.verify(out, repair=True, workers=1).sound
    assert hbpack.verify(out, workers=1).repaired == []


def test_rebalance_versions_restore_and_prune(out, twin, of_command, in_folder):
    gone = in_folder(out, hbpack.rebalance, "out", gpus=4, from_step=1)
    assert gone == of_command(twin, "rebalance", "out", "--gpus", 4, "--from-step", 1)
    assert tree(out) == tree(twin)
    for folder in (out, twin):
        hbpack.plan(folder, output=folder, gpus=16)
        hbpack.write(folder, workers=1)
    found = in_folder(out, hbpack.versions, "out")
    assert without_times(found) == without_times(of_command(twin, "versions", "out"))
    found = in_folder(out, hbpack.restore, "out@1")
    assert without_times(found) == without_times(of_command(twin, "restore", "out@1"))
    found = in_folder(out, hbpack.prune, "out", keep=1)
    assert without_times(found) == without_times(of_command(twin, "prune", "out", "--keep", 1))
    pruned = [each["num_gpus"] for each in found["versions"] if each["num_bytes"] is None]
    assert pruned == [16]
    assert tree(out) == tree(twin)


def test_export(out, twin, of_command, in_folder):
    found = in_folder(out, hbpack.export, "out", to="megatron", output="made", workers=1, order="packs")
    assert found == of_command(twin, "export", "out", "--to", "megatron", *ONE, "--order", "packs", "--output", "made")
    assert found["num_rows"]
    assert tree(out.parent / "made") == tree(twin.parent / "made")


@pytest.mark.parametrize(
    ("function", "given", "message"),
    [
        ("write", {"shard": "4/4"}, "--shard 4/4: must be I/N with 0 <= I < N, such as 0/4 for the first of four"),
        ("write", {"shards": "0/4"}, "write() has no option 'shards' (did you mean 'shard'?)"),
        ("append", {"gone": "forget"}, "--gone must be one of 'keep' or 'drop', got 'forget'"),
        ("append", {"keep": 0}, "--keep must be at least 1, got 0"),
        ("status", {"stage": "export"}, "--stage must be one of 'tokens', 'plan' or 'shards', got 'export'"),
        ("prune", {"keep": 0}, "--keep must be at least 1, got 0"),
        ("verify", {"workers": 0}, "--workers must be at least 1, got 0"),
        ("rebalance", {}, "--gpus is required"),
        ("export", {}, "--to is required; to push the packed set itself, give --push-to-hub"),
        ("export", {"to": "trl"}, "--to needs --output"),
        ("export", {"push_to_hub": "a/b", "shard": "0/2"}, "--push-to-hub does not run in a job array; "),
    ],
)
def test_what_is_wrong_is_one_line(function, given, message, out):
    before = tree(out)
    with pytest.raises(hbpack.HbpackError) as error:
        getattr(hbpack, function)(out, **given)
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)
    assert tree(out) == before


@pytest.fixture
def on_progress():
    yield hbpack.on_progress
    progress.show_bars(progress._no_bar)


def test_progress_is_told(corpus, options, on_progress, tmp_path):
    calls: list[tuple[str, int, int, str]] = []
    on_progress(lambda *call: calls.append(call))
    hbpack.pack(corpus, output=tmp_path, **options, **GROUPS)
    assert list(dict.fromkeys((stage, unit) for stage, _, _, unit in calls)) == [
        ("Tokenizing", "bytes"),
        ("Writing", "tokens"),
    ]
    for stage in ("Tokenizing", "Writing"):
        amounts = [(done, total) for name, done, total, _ in calls if name == stage]
        assert amounts == sorted(amounts)
        assert amounts[-1][0] == amounts[-1][1] > 0


@pytest.mark.parametrize("stage", ["Tokenizing", "Writing"])
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("kind", [KeyboardInterrupt, ZeroDivisionError])
def test_a_call_that_is_stopped_goes_on(packed, corpus, options, on_progress, tmp_path, stage, workers, kind):
    def stop(name: str, done: int, total: int, unit: str) -> None:
        if name == stage:
            raise kind

    on_progress(stop)
    given = {**options, **GROUPS, "workers": workers, "shard_size": "64KiB"}
    with pytest.raises(kind):
        hbpack.pack(corpus, output=tmp_path / "out", **given)
    assert not hbpack.status(tmp_path / "out").complete
    on_progress(lambda *call: None)
    hbpack.pack(corpus, output=tmp_path / "out", **given)
    hbpack.pack(corpus, output=tmp_path / "whole", **given)
    assert tree(tmp_path / "out") == tree(tmp_path / "whole")


def test_all_of_it_prints_nothing(packed, corpus, sample, tmp_path):
    code = f"""
import packer_cli as hbpack
hbpack.tokenize({str(corpus)!r}, output="out", tokenizer={str(sample / "tokenizer")!r}, workers=1)
hbpack.plan("out", output="out", **{GROUPS!r})
hbpack.write("out", workers=1)
hbpack.append("out", {str(sample / "journals.jsonl")!r}, workers=1)
hbpack.restore("out@1")
hbpack.rebalance("out", gpus=4)
hbpack.prune("out", keep=1)
hbpack.verify("out", workers=1)
hbpack.export("out", to="trl", output="trl", workers=1)
hbpack.status("out"), hbpack.versions("out")
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_config_from_data(corpus, sample, command, tmp_path, capfd):
    written = hbpack.init(corpus, output=tmp_path / "own.yaml", tokenizer=sample / "tokenizer", gpus=4)
    assert capfd.readouterr().out == ""
    words = ("--output", tmp_path / "other.yaml", "--tokenizer", sample / "tokenizer", "--gpus", 4, "--json")
    done = command("init", corpus, *words)
    assert {**json_of(written), "output": ""} == {**json.loads(done.stdout), "output": ""}
    texts = [(tmp_path / name).read_text().splitlines()[2:] for name in ("own.yaml", "other.yaml")]
    assert texts[0] == texts[1]
    with pytest.raises(hbpack.HbpackError, match=r"own\.yaml' already exists; remove it"):
        hbpack.init(corpus, output=tmp_path / "own.yaml")
    for gpus in (0, 2**30, "8", None):
        with pytest.raises(hbpack.HbpackError, match=f"--gpus must be a number from 1 to 1048576, got {gpus!r}"):
            hbpack.init(corpus, output=tmp_path / "none.yaml", gpus=gpus)


def test_a_checkup(command, tmp_path, capfd):
    found = hbpack.doctor(tmp_path)
    assert capfd.readouterr().out == ""
    names = [each["name"] for each in json.loads(command("doctor", "--output", tmp_path, "--json").stdout)["checks"]]
    assert [check.name for check in found.checks] == names
