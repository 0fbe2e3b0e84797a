"""A set that changes every week: each run says what changes, and every week can be had again."""

from __future__ import annotations

import json
import shutil

import pytest

from packer_cli.cli.main import main
from tests.cli_runner import run
from tests.reference import home, tree


@pytest.mark.slow
def test_ten_weeks(repo, tmp_path):
    sample, out, dumps = repo / "examples" / "sample", tmp_path / "out", tmp_path / "dumps"
    lines = (sample / "chats.jsonl").read_text().splitlines(keepends=True)

    def dump(name, first, stop):
        path = dumps / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(lines[first:stop]))
        return path

    def do(*commands):
        """Run the commands of a week; what they say, and the new line of `versions`."""
        said = ""
        for command in commands:
            done = run(main, *command)
            assert done.code == 0, done.stderr
            said += done.stderr
        versions = json.loads(run(main, "versions", out, "--json").stdout)["versions"]
        assert run(main, "verify", out).code == 0
        weeks.append(tree(home(out)))
        return said, versions[-1]

    weeks = []
    options = [
        "--tokenizer",
        sample / "tokenizer",
        "--groups",
        "2k:1,8k:2",
        "--gpus",
        "8",
        "--dedup",
        "drop",
        "-o",
        out,
    ]
    first, day = dump("week-1.jsonl", 0, 300), dumps / "daily"
    dump("daily/1.jsonl", 300, 400)
    _, line = do(["pack", first, f"{day}/*.jsonl", *options])
    assert line["records"] == 400

    # A dump that overlaps with the one before.
    said, line = do(["append", out, dump("week-2.jsonl", 200, 500)])
    assert line["records"] == 700
    assert line["changed"] == [f"added 1 input: {dumps}/week-2.jsonl"]
    inputs = json.loads(run(main, "stats", out, "--json").stdout)["counts"]["inputs"]
    assert [each["duplicates"] for each in inputs] == [0, 0, 200]

    said, line = do(["append", out, dump("week-3.jsonl", 500, 600)])
    assert line["records"] == 800

    # Another weight.
    inputs = [first, f"{day}/*.jsonl", dumps / "week-2.jsonl", dumps / "week-3.jsonl"]
    _, line = do(["pack", *inputs[:3], f"{inputs[3]}@2", *options])
    assert line["changed"] == [f"{dumps}/week-3.jsonl: weight 1 became weight 2"]

    # Retention deleted a source, whose tokens stay.
    first.unlink()
    assert run(main, "append", out, dump("week-5.jsonl", 600, 700)).code == 2
    _, line = do(["append", out, dumps / "week-5.jsonl", "--gone", "keep"])
    assert line["records"] == 900

    # A late file of a folder that is there.
    dump("daily/0.jsonl", 700, 750)
    _, line = do(["append", out, "--gone", "keep"])
    assert line["records"] == 950

    _, line = do(["plan", out, "--gpus", "6"], ["write", out])
    assert line["changed"] == ["gpus: 8 became 6"]

    # The tokens of the deleted source go, too.
    _, line = do(["append", out, "--gone", "drop"])
    assert line["records"] == 650

    # The tokenizer writes turns otherwise.
    changed = shutil.copytree(sample / "tokenizer", tmp_path / "tokenizer")
    config = changed / "tokenizer_config.json"
    config.write_text(config.read_text().replace("<|start|>' + message.role", "<|start|>' + 'the ' + message.role"))
    now = [f"{day}/*.jsonl", *(dumps / f"week-{number}.jsonl" for number in (2, 3, 5))]
    said, line = do(["pack", *now, "--tokenizer", changed, *options[2:]])
    assert f"another tokenizer: {changed}" in line["changed"]
    assert "gpus: 6 became 8" in line["changed"]
    assert "tokenizer" in said

    said, line = do(["append", out, dump("week-10.jsonl", 750, 800)])
    assert (line["number"], line["records"]) == (10, 700)

    # Back to the third week, and every week as it was.
    assert run(main, "restore", f"{out}@3").code == 0
    assert tree(home(out)) == weeks[2]
    assert run(main, "write", out).code == 0
    folders = {
        each["number"]: each["folder"] for each in json.loads(run(main, "versions", out, "--json").stdout)["versions"]
    }
    assert [tree(out / folders[number]) for number in range(1, 11)] == weeks
    assert run(main, "prune", out, "--keep", "1").code == 0
    assert run(main, "verify", out).code == 0
