"""Packages: found when named, recorded, missed when gone; and a broken one harms nobody."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import packer_cli as hbpack
from packer_cli.cli.main import main
from packer_cli.errors import ConfigError
from packer_cli.loader import PackedDataset
from tests.cli_runner import HBPACK, pack_words, run
from tests.plugins.objects import LENGTHS
from tests.plugins.package import forget, install

MISSING = "of my-hbpack 1.0, which is not installed here; install that package"


def in_process(folder: Path, *words: object) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), *sys.path])}
    return subprocess.run([*HBPACK, *map(str, words)], env=env, capture_output=True, text=True)


def pack(repo: Path, out: Path, *options: object) -> None:
    done = run(main, *pack_words(repo, "chats.jsonl"), "--workers", 1, "--output", out, *options)
    assert done.code == 0, done.stderr


def test_a_packing_and_a_strategy_from_pack_to_rebalance(repo, package, tmp_path):
    out = tmp_path / "OUT"
    pack(repo, out, "--packing", "two-ends", "--strategy", "rising")
    plan = json.loads((out / "hbpack.json").read_text())["config"]["plan"]
    assert plan["packages"] == {"strategy": "my-hbpack 1.0", "packing": "my-hbpack 1.0"}
    assert run(main, "verify", out).code == 0
    assert run(main, "rebalance", out, "--gpus", 4, "--from-step", 3).code == 0
    assert run(main, "verify", out).code == 0
    done = run(main, "compare", out, "--groups", "1k,8k:4", "--gpus", 4, "--strategies", "balanced,rising", "--json")
    rows = json.loads(done.stdout)["rows"]
    assert [(row["name"], row["error"]) for row in rows] == [("balanced", None), ("rising", None)]
    pack(repo, out, "--packing", "two-ends", "--strategy", "rising")
    again = run(
        main, *pack_words(repo, "chats.jsonl"), "--packing", "two-ends", "--strategy", "rising", "--output", out
    )
    assert "the plan is up to date" in again.stderr


def test_a_set_outlives_the_package_but_cannot_be_planned_again(repo, package, tmp_path):
    out = tmp_path / "OUT"
    pack(repo, out, "--packing", "two-ends", "--strategy", "rising")
    (package / "my_hbpack-1.0.dist-info").rename(tmp_path / "gone")
    forget()
    for words in (("rebalance", out, "--gpus", 4), ("append", out, repo / "examples/sample/journals.jsonl")):
        done = run(main, *words)
        assert done.code == 2, words
        assert f", by which this was planned, is {MISSING}" in done.stderr
    for words in (("verify", out), ("export", out, "--to", "trl", "--output", tmp_path / "TRL"), ("show", out)):
        assert run(main, *words).code == 0, words
    assert len(PackedDataset(out, rank=0, world_size=8)[0]["input_ids"])


def test_another_version_of_the_package_makes_another_plan(repo, package, tmp_path):
    out = tmp_path / "OUT"
    pack(repo, out, "--strategy", "rising")
    before = json.loads((out / "hbpack.json").read_text())["fingerprint"]
    (package / "my_hbpack-1.0.dist-info").rename(tmp_path / "gone")
    install(package, "1.1")
    forget()
    pack(repo, out, "--strategy", "rising")
    manifest = json.loads((out / "hbpack.json").read_text())
    assert manifest["config"]["plan"]["packages"] == {"strategy": "my-hbpack 1.1"}
    assert manifest["fingerprint"] != before


def test_workers_of_another_process_find_a_record_schema(package, tmp_path, repo):
    data = tmp_path / "reports.jsonl"
    records = [{"title": f"Report {i}. ", "body": "All is well. " * (i % 7 + 1)} for i in range(40)]
    records[5]["body"] = None
    data.write_text("".join(json.dumps(record) + "\n" for record in records))
    words = ["pack", data, *pack_words(repo, "chats.jsonl")[2:], "--workers", 2, "--output", tmp_path / "OUT"]
    refused = in_process(package, *words)
    assert refused.returncode == 1
    assert "no known record shape" in (tmp_path / "OUT" / "rejected.jsonl").read_text()
    done = in_process(package, *words, "--schema", "report")
    assert done.returncode == 0, done.stderr
    manifest = json.loads((tmp_path / "OUT" / "hbpack.json").read_text())
    assert (manifest["counts"]["samples"], manifest["counts"]["rejected"]) == (39, 1)
    assert manifest["library_versions"]["my-hbpack"] == "1.0"
    (rejected,) = (tmp_path / "OUT" / "rejected.jsonl").read_text().splitlines()
    assert json.loads(rejected)["line"] == 6
    assert json.loads(rejected)["reason"].startswith("schema report: TypeError: ")


def test_an_export_and_a_loader_format(repo, package, tmp_path):
    out = tmp_path / "OUT"
    pack(repo, out)
    exported = in_process(package, "export", out, "--to", "lengths", "--groups", "1k", "--output", tmp_path / "TEXT")
    assert exported.returncode == 0, exported.stderr
    lengths = (tmp_path / "TEXT" / "lengths.txt").read_text().split()
    assert len(lengths) == json.loads((out / "hbpack.json").read_text())["groups"][0]["num_packs"]
    assert "my-hbpack 1.0" in "".join(each.read_text() for each in (tmp_path / "TEXT").glob(".*") if each.is_file())
    assert PackedDataset(out, rank=0, world_size=8, format="plain")[0].keys() == {"pack"}


def test_a_broken_package_harms_only_who_names_it(package, tmp_path):
    np.save(tmp_path / "lengths.npy", np.array([60, 50, 50, 40, 30, 70] * 10))
    words = ("stats", tmp_path / "lengths.npy", "--groups", "100", "--gpus", 2)
    assert run(main, *words).code == 0
    assert run(main, "compare", *words[1:], "--strategies", "all").code == 0
    for name, why in (
        ("broken", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("wrong", "TypeError: "),
        ("leaves", "SystemExit: 3"),
    ):
        done = run(main, *words, "--strategy", name)
        assert done.code == 2
        assert f"strategy {name!r} of my-hbpack 1.0 cannot be loaded: {why}" in done.stderr
    done = run(main, *words, "--strategy", "risign")
    assert done.code == 2
    assert "unknown strategy 'risign' (did you mean 'rising'?); known: balanced, " in done.stderr


def test_the_doctor_knows_them(package):
    checks = {each["name"]: each for each in json.loads(run(main, "doctor", "--json").stdout)["checks"]}
    assert checks["packing two-ends"]["value"] == "of my-hbpack 1.0"
    assert {checks[f"{kind} {name}"]["state"] for kind, name in (("export", "lengths"), ("schema", "report"))} == {
        "ok"
    }
    assert checks["strategy broken"]["state"] == "note"
    assert checks["strategy broken"]["remedy"] == "fix or uninstall that package, or choose another"


def test_a_packing_that_ends_the_process_is_an_error(repo, package, tmp_path):
    words = (*pack_words(repo, "chats.jsonl"), "--packing", "exits", "--output", tmp_path / "OUT")
    for workers in (1, 2):
        done = in_process(package, *words, "--workers", workers)
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr.endswith("error: packing 'exits' failed: SystemExit: 0\n")


def test_what_a_packing_prints_is_no_result(repo, package, tmp_path):
    words = (*pack_words(repo, "chats.jsonl"), "--packing", "talks", "--output", tmp_path / "OUT", "--json")
    done = in_process(package, *words, "--workers", 2)
    assert json.loads(done.stdout)["counts"]["samples"] > 100
    assert "imported\n" in done.stderr
    assert "packing 2" in done.stderr


def test_an_error_in_a_rebalance_names_the_strategy(repo, package, tmp_path):
    out = tmp_path / "OUT"
    pack(repo, out, "--strategy", "no-rest")
    done = run(main, "rebalance", out, "--gpus", 4)
    assert (done.code, done.stderr) == (1, "error: strategy 'no-rest' failed: KeyError: 'rest'\n")
    assert run(main, "verify", out).code == 0


def test_two_packages_may_not_bring_the_same_name(package):
    install(package, name="theirs", points={"packings": {"two-ends": "two_ends:two_ends"}})
    with pytest.raises(
        ConfigError, match=r"'two-ends' is of my-hbpack 1\.0 and of theirs 1\.0; uninstall one of them"
    ):
        hbpack.plan([5], groups="10:1", gpus=1, packing="two-ends")


def test_names_of_hbpack_are_its_own(package):
    install(package, name="theirs", points={"packings": {"bfd": "broken:x"}})
    assert hbpack.plan([5], groups="10:1", gpus=1, packing="bfd").config.packages is None


def test_an_object_of_an_installed_package_is_the_packages(package):
    from rising import Rising

    assert hbpack.plan(LENGTHS, groups="100:1", gpus=2, strategy=Rising).config.packages == {
        "strategy": "my-hbpack 1.0"
    }
