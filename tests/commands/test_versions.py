"""Versions of a set: what a run leaves of the earlier ones, what it says, and the way back."""

from __future__ import annotations

import json
import shutil
from contextlib import contextmanager

import pytest

from packer_cli.cli.main import main
from packer_cli.commands import output_folder
from packer_cli.loader import PackedDataset
from tests.cli_runner import run
from tests.reference import home, read_packs, tree


@pytest.fixture(scope="module")
def made(tmp_path_factory, repo):
    """A set of three versions, and the inputs that they were made of."""
    folder = tmp_path_factory.mktemp("versions")
    sample = repo / "examples" / "sample"
    out = folder / "out"
    lines = (sample / "chats.jsonl").read_text().splitlines(keepends=True)
    for number in range(2):
        (folder / f"week-{number}.jsonl").write_text("".join(lines[number * 200 : (number + 1) * 200]))
    options = ["--tokenizer", sample / "tokenizer", "--groups", "4k:1", "--gpus", "2", "--validation", "10%"]
    for command in (
        ["pack", folder / "week-0.jsonl", *options, "--output", out],
        ["append", out, folder / "week-1.jsonl"],
        ["plan", out, "--gpus", "4"],
        ["write", out],
    ):
        assert run(main, *command).code == 0
    return out


def files_of(folder):
    """The bytes of a version, by path."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def listed(out):
    return json.loads(run(main, "versions", out, "--json").stdout)["versions"]


def test_each_run_makes_a_version_and_says_what_changed(made):
    first, second, third = listed(made)
    assert [each["command"] for each in (first, second, third)] == ["pack", "append", "write"]
    assert (first["records"], second["records"], third["num_gpus"]) == (200, 400, 4)
    assert first["changed"] == []
    assert third["changed"] == ["gpus: 2 became 4"]
    assert len(second["changed"]) == 1
    assert second["changed"][0].startswith("added 1 input: ")
    assert [each["is_current"] for each in (first, second, third)] == [False, False, True]
    assert (made / "current").resolve() == home(made).resolve()


@pytest.mark.parametrize("number", [1, 2, 3])
def test_every_version_is_read_by_its_number(made, number):
    name = f"{made}@{number}"
    assert run(main, "verify", name).code == 0
    stats = json.loads(run(main, "stats", name, "--json").stdout)
    assert stats["overall"]["num_packs"] == len(read_packs(made / listed(made)[number - 1]["folder"]))
    own = PackedDataset(name, 0, 4 if number == 3 else 2)
    aside = PackedDataset(f"{name}/validation", 0, 4 if number == 3 else 2)
    assert len(own)
    assert len(aside)
    assert "samples" in run(main, "show", f"{name}/validation").stdout


def test_a_path_of_that_name_wins(made, tmp_path):
    shutil.copytree(made / listed(made)[0]["folder"], tmp_path / "out@3")
    assert run(main, "stats", tmp_path / "out@3").code == 0


@pytest.mark.parametrize("name", ["@9", "@0", "@4/validation"])
def test_versions_that_are_not_there(made, name):
    done = run(main, "stats", f"{made}{name}")
    assert done.code == 2
    assert "it has 1, 2, 3, see hbpack versions" in done.stderr


def test_a_restored_version_has_its_bytes_and_goes_on_from_there(made, tmp_path):
    out = shutil.copytree(made, tmp_path / "out", symlinks=True)
    before = {each["folder"]: files_of(out / each["folder"]) for each in listed(out)}
    done = run(main, "restore", f"{out}@1")
    assert done.code == 0, done.stderr
    assert {folder: files_of(out / folder) for folder in before} == before
    assert listed(out)[-1] | {"time": 0} == listed(out)[0] | {
        "time": 0, "number": 4, "command": "restore @1", "is_current": True,
        "changed": listed(out)[-1]["changed"],
    }  # fmt: skip
    assert run(main, "status", out).code == 0
    again = run(main, "write", out)
    assert again.code == 0
    assert "up to date" in again.stderr
    assert len(listed(out)) == 4
    # As if the second week had not been appended yet.
    assert run(main, "append", out, made.parent / "week-1.jsonl").code == 0
    assert home(out).name == listed(out)[1]["folder"]
    assert {folder: files_of(out / folder) for folder in before} == before


def test_a_version_is_restored_by_its_number(made):
    assert run(main, "restore", made).stderr.startswith("error: ")


def test_prune_leaves_the_newest_and_the_parts_that_they_need(made, tmp_path):
    out = shutil.copytree(made, tmp_path / "out", symlinks=True)
    assert run(main, "restore", f"{out}@1").code == 0
    parts = set((out / "tokens").glob("part-*.arrow"))
    done = run(main, "prune", out, "--keep", "2")
    assert done.code == 0
    assert "removed 1 older version" in done.stderr
    assert [each["num_bytes"] is None for each in listed(out)] == [False, True, False, False]
    assert set((out / "tokens").glob("part-*.arrow")) == parts
    assert run(main, "prune", out, "--keep", "1").code == 0
    assert set((out / "tokens").glob("part-*.arrow")) < parts
    assert run(main, "verify", out).code == 0
    assert run(main, "verify", f"{out}@3").code == 2


@pytest.mark.parametrize("name", ["plan.arrow", "rejected.jsonl", "store.json", "shards", "ranks"])
def test_prune_removes_what_a_killed_one_left(made, tmp_path, name):
    out = shutil.copytree(made, tmp_path / "out", symlinks=True)
    first = out / listed(out)[0]["folder"]
    for path in [*first.iterdir()]:
        if path.name != name:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    assert run(main, "prune", out, "--keep", "1").code == 0
    assert not first.exists()


def test_a_run_prunes_where_it_is_asked_to(made, tmp_path):
    out = shutil.copytree(made, tmp_path / "out", symlinks=True)
    done = run(main, "write", out, "--shard-size", "100kB", "--keep", "1")
    assert done.code == 0
    assert "removed 3 older versions" in done.stderr
    assert [path.name for path in out.iterdir() if len(path.name) == 32] == [home(out).name]


def test_a_killed_write_leaves_the_earlier_version(made, tmp_path, monkeypatch):
    out = shutil.copytree(made, tmp_path / "out", symlinks=True)
    before = (out / "hbpack.json").read_bytes()
    assert run(main, "plan", out, "--gpus", "8").code == 0

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("packer_cli.commands.write.make_current", interrupted)
    assert run(main, "write", out).code == 130
    monkeypatch.undo()
    assert (out / "hbpack.json").read_bytes() == before
    assert run(main, "verify", out).code == 0
    assert run(main, "write", out).code == 0
    assert json.loads((out / "hbpack.json").read_text())["num_gpus"] == 8
    assert len(listed(out)) == 4


def test_another_number_of_gpus_is_the_same_version(made, tmp_path):
    out = shutil.copytree(made, tmp_path / "out", symlinks=True)
    assert run(main, "rebalance", out, "--gpus", "2").code == 0
    last = listed(out)[-1]
    assert (last["number"], last["command"], last["changed"]) == (3, "rebalance", ["gpus: 4 became 2"])
    assert len(PackedDataset(f"{out}@3", 0, 2))


def test_a_copy_of_a_version_is_a_set(made, tmp_path):
    copy = shutil.copytree(home(made), tmp_path / "copy")
    assert run(main, "verify", copy).code == 0
    assert len(PackedDataset(copy, 0, 4))
    shard = next(copy.glob("shards/*/*.arrow"))
    shard.write_bytes(b"")
    assert run(main, "verify", copy).code == 1


def test_a_folder_in_the_place_of_the_link_stays(made, tmp_path):
    out = shutil.copytree(made, tmp_path / "out", symlinks=True)
    (out / "current").unlink()
    (out / "current").mkdir()
    before = sorted(path.name for path in out.iterdir())
    assert run(main, "write", out).code == 0
    assert (out / "current").is_dir()
    assert not (out / "current").is_symlink()
    assert sorted(path.name for path in out.iterdir()) == before


def test_a_damaged_manifest_of_the_set_is_found_and_repaired(made, tmp_path):
    out = shutil.copytree(made, tmp_path / "out", symlinks=True)
    path = out / "hbpack.json"
    before = path.read_bytes()
    path.write_bytes(before.replace(b'"num_gpus": 4', b'"num_gpus": 8', 1))
    done = run(main, "verify", out)
    assert done.code == 1
    assert "../hbpack.json: it is not that of the version" in done.stdout
    assert run(main, "verify", out, "--repair").code == 0
    assert path.read_bytes() == before
    path.write_bytes(before[:100])
    assert run(main, "verify", out).code == 1
    assert run(main, "write", out).code == 0
    assert path.read_bytes() == before


@pytest.mark.parametrize("command", [["plan"], ["write"], ["rebalance"], ["append"], ["pack"]])
def test_no_run_changes_a_version(made, command, repo):
    """By its number, by its folder, or by the link to it."""
    before = tree(made)
    words = {"plan": ["--gpus", "8"], "rebalance": ["--gpus", "8"], "append": [made.parent / "week-0.jsonl"]}
    for name in (f"{made}@1", home(made), made / "current"):
        more = words.get(command[0], [])
        if command == ["pack"]:
            sample = repo / "examples" / "sample"
            more = ["--tokenizer", sample / "tokenizer", "--groups", "4k:1", "--gpus", "2", "--output", name]
            name = made.parent / "week-0.jsonl"
        done = run(main, *command, name, *more)
        assert done.code in (1, 2)
        assert "Traceback" not in done.stderr
        assert tree(made) == before
    assert not made.with_name(f"{made.name}@1").exists()


def test_restore_reads_its_version_when_it_has_the_folder(made, tmp_path, monkeypatch):
    """Another run may have removed the version while it waited."""
    out = shutil.copytree(made, tmp_path / "out", symlinks=True)
    before = (out / "hbpack.json").read_bytes()
    held, first = output_folder.locked_output, out / listed(out)[0]["folder"]

    @contextmanager
    def late(folder):
        with held(folder):
            shutil.rmtree(first)
            yield

    monkeypatch.setattr("packer_cli.commands.versions.locked_output", late)
    assert run(main, "restore", f"{out}@1").code == 2
    assert (out / "hbpack.json").read_bytes() == before


def test_what_is_no_version_stays(made, tmp_path):
    out = shutil.copytree(made, tmp_path / "out", symlinks=True)
    other = out / ("0" * 32)
    other.mkdir()
    (other / "notes.txt").write_text("mine")
    assert run(main, "write", out, "--keep", "1").code == 0
    assert run(main, "prune", out, "--keep", "1").code == 0
    assert (other / "notes.txt").read_text() == "mine"


def test_repair_makes_no_version_of_a_plan_that_was_not_written(made, tmp_path):
    out = shutil.copytree(made, tmp_path / "out", symlinks=True)
    assert run(main, "plan", out, "--gpus", "8").code == 0
    next(home(out).glob("shards/*/*.arrow")).write_bytes(b"")
    done = run(main, "verify", out, "--repair")
    assert done.code == 1
    assert f"run hbpack restore {out}@3, then hbpack write {out}" in done.stdout
    assert len(listed(out)) == 3
    assert run(main, "restore", f"{out}@3").code == 0
    assert run(main, "write", out).code == 0
    assert run(main, "verify", out).code == 0
    assert home(out).name == home(made).name


def test_an_append_after_a_restore_that_was_killed(made, tmp_path, monkeypatch):
    out = shutil.copytree(made, tmp_path / "out", symlinks=True)

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("packer_cli.commands.versions.take_plan", interrupted)
    assert run(main, "restore", f"{out}@1").code == 130
    monkeypatch.undo()
    done = run(main, "append", out, made.parent / "week-0.jsonl")
    assert done.code == 2
    assert "as a killed restore leaves it" in done.stderr
    assert run(main, "restore", f"{out}@3").code == 0
    assert run(main, "append", out, made.parent / "week-1.jsonl").code == 0


def test_the_name_of_a_set_may_be_like_that_of_a_version(made, tmp_path):
    out = shutil.copytree(made, tmp_path / ("0123456789abcdef" * 2), symlinks=True)
    assert run(main, "verify", out).code == 0
    assert run(main, "plan", out, "--gpus", "8").code == 0
    assert run(main, "write", out).code == 0
    assert run(main, "append", out, made.parent / "week-0.jsonl").code == 0
    assert len(PackedDataset(f"{out}@4", 0, 8))
