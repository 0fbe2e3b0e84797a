"""`--dedup`: exact duplicates across inputs are counted, or left out of the plan."""

from __future__ import annotations

import json

import pytest

import packer_cli as hbpack
from packer_cli.cli.main import main
from packer_cli.errors import ConfigError
from packer_cli.loader import PackedDataset
from tests.cli_runner import run
from tests.commands.conftest import NUM_CHATS
from tests.commands.test_validation import counts, texts
from tests.reference import tree


@pytest.fixture(scope="module")
def dumps(sample, tmp_path_factory):
    """Two weeks: the second repeats half of the first, with a record that is there twice."""
    lines = (sample / "chats.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    folder = tmp_path_factory.mktemp("dumps")
    weeks = folder / "week-1.jsonl", folder / "week-2.jsonl"
    for path, own in zip(weeks, (lines[:60], [*lines[30:90], lines[89]]), strict=True):
        path.write_text("".join(own), encoding="utf-8")
    return weeks


def left_out(out):
    return [json.loads(line) for line in (out / "rejected.jsonl").read_text().splitlines()]


def test_the_first_stays(dumps, pack, tmp_path):
    second = dumps[1]
    plain, out = tmp_path / "plain", tmp_path / "out"
    pack(plain, *dumps)
    done = pack(out, *dumps, "--dedup", "drop", "--json")
    assert texts(out) == dict.fromkeys(texts(plain), 1)
    places = [(each["file"], each["line"], each["reason"]) for each in left_out(out)]
    assert places == [(str(second), line, "duplicate") for line in (*range(1, 31), 61)]
    found = counts(out)
    assert (found["records"], found["samples"], found["duplicates_left_out"]) == (121, 90, 31)
    assert [(each["samples"], each["duplicates"]) for each in found["inputs"]] == [(60, 0), (30, 31)]
    assert json.loads(done.stdout)["inputs"][1]["duplicates"] == 31
    text = " ".join(run(main, "stats", out).stdout.split())
    assert "duplicates left out 31" in text
    assert f"{second} once 30" in text
    assert run(main, "verify", out).code == 0
    before = tree(out)
    assert "the shards are up to date" in pack(out, *dumps, "--dedup", "drop", "--workers", 2).stderr
    assert tree(out) == before


def test_report_changes_nothing_but_counts(dumps, pack, tmp_path):
    plain, out = tmp_path / "plain", tmp_path / "out"
    pack(plain, *dumps)
    pack(out, *dumps, "--dedup", "report")
    assert texts(out) == texts(plain)
    assert left_out(out) == []
    assert counts(out)["duplicates"] == 31
    assert "duplicates_left_out" not in counts(out)
    assert "duplicates" not in counts(plain)
    again = run(main, "plan", out, "--dedup", "off")
    assert again.code == 0, again.stderr
    assert "changed: --dedup off (was report)" in again.stderr
    assert (out / "plan.arrow").read_bytes() == (plain / "plan.arrow").read_bytes()


def test_weights_are_of_what_stays(dumps, pack, tmp_path):
    """Each source gives the tokens asked for, of the samples that stay."""
    done = pack(tmp_path / "out", f"{dumps[0]}@2.0", f"{dumps[1]}@3.0", "--dedup", "drop", "--json")
    assert [each["samples"] for each in json.loads(done.stdout)["inputs"]] == [120, 90]
    assert {*texts(tmp_path / "out").values()} == {2, 3}
    done = pack(tmp_path / "half", f"{dumps[0]}@50%", f"{dumps[1]}@50%", "--dedup", "drop", "--json")
    assert [each["share"] for each in json.loads(done.stdout)["inputs"]] == pytest.approx([0.5, 0.5], abs=0.03)
    assert {*texts(tmp_path / "half").values()} == {1}


def test_duplicates_of_validation_samples_leave_training(chats, dumps, pack, tmp_path):
    out = tmp_path / "out"
    pack(out, chats, "--validation", 20, "--dedup", "drop")
    training, validation = texts(out), texts(out / "validation")
    assert (sum(validation.values()), {*validation.values(), *training.values()}) == (20, {1})
    assert not training.keys() & validation.keys()
    assert len(training) == NUM_CHATS - 20
    found, aside = counts(out), counts(out / "validation")
    assert found["records"] - found["rejected"] - found["samples"] - found["duplicates_left_out"] == aside["records"]
    assert [each["reason"].partition(" ")[0] for each in left_out(out)] == ["broken", *["duplicate"] * 10]
    assert run(main, "verify", out).code == 0
    PackedDataset(out / "validation", 0, 8).require_held_out(PackedDataset(out, 0, 8))

    assert run(main, "append", out, *dumps, "--workers", 1).code == 0
    assert {*texts(out).values()} == {1}
    assert texts(out).keys() == training.keys()  # All of the new records were there.
    assert counts(out)["duplicates_left_out"] == 131


def test_it_needs_tokens():
    with pytest.raises(ConfigError, match="dedup: samples are compared by their tokens"):
        hbpack.plan([512, 80], groups="1k", gpus=1, dedup="drop")
