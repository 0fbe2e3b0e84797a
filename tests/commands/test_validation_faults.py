"""A validation set beside the training set: never samples of both, nothing of the user's removed, one remedy."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from packer_cli.cli.main import main
from packer_cli.commands import plan, rebalance
from packer_cli.files import remove_folder
from tests.cli_runner import run
from tests.commands.conftest import GROUPS
from tests.reference import current_tree, home, tree

AGAIN = "the same hbpack pack again, or hbpack plan and hbpack write"


def raising(error: type[BaseException]):
    def call(*arguments: object, **options: object):
        raise error

    return call


def counts(folder: Path) -> dict[str, int]:
    return json.loads((home(folder) / "hbpack.json").read_text())["counts"]


def state(out: Path) -> dict[str, str] | None:
    """The stage of the plan, as `hbpack status` tells it."""
    stages = json.loads(run(main, "status", out, "--json").stdout)["stages"]
    return next((stage for stage in stages if stage["stage"] == "plan"), None)


class TestASetThatIsDropped:
    def test_stays_beside_the_set_until_its_version_ends(self, out, packed, chats, pack, monkeypatch):
        with monkeypatch.context() as patch:
            patch.setattr(plan, "write_plan", raising(KeyboardInterrupt))
            pack(out, chats, code=130)
        assert run(main, "write", out).code == 0  # The plan that is there sets samples aside.
        assert run(main, "verify", out).code == 0
        assert tree(home(out)) == tree(home(packed))

    def test_is_removed_by_pack_where_the_run_was_killed(self, out, chats, pack, tmp_path, monkeypatch):
        with monkeypatch.context() as patch:
            patch.setattr(plan, "remove_validation", raising(KeyboardInterrupt))
            pack(out, chats, code=130)
        assert (out / "validation/plan.arrow").exists()
        assert run(main, "verify", out).code == 0
        for command in (("write", out), ("plan", out)):
            assert run(main, *command).code == 0
        pack(tmp_path / "without", chats)
        assert current_tree(out) == current_tree(tmp_path / "without")

    def test_leaves_files_of_the_user(self, out, chats, pack):
        (out / "validation/notes.txt").write_text("mine")
        (out / "validation/ckpt").mkdir()
        (out / "validation/ckpt/a.bin").write_text("mine")
        pack(out, chats)
        assert sorted(tree(out / "validation")) == ["ckpt/a.bin", "notes.txt"]
        assert run(main, "verify", out).code == 0

    def test_of_an_unreadable_plan_stays(self, out, chats, pack):
        (out / "validation/plan.arrow").write_text("broken")
        pack(out, chats)
        assert (out / "validation/plan.arrow").read_text() == "broken"
        assert run(main, "verify", out).code == 0

    def test_is_no_link(self, out, chats, pack, tmp_path):
        (out / "validation").rename(tmp_path / "elsewhere")
        (out / "validation").symlink_to(tmp_path / "elsewhere")
        before = tree(tmp_path / "elsewhere")
        assert "is a link" in pack(out, chats, "--validation", "5%", code=2).stderr
        assert tree(tmp_path / "elsewhere") == before


class TestTheFolder:
    @pytest.mark.parametrize(
        "command", ["plan OUT -o OUT/validation", "plan OUT/validation", "append", "pack", "tokenize"]
    )
    def test_takes_no_other_set(self, out, chats, sample, command):
        own = out / "validation"
        before = tree(out)
        corpus = (chats, "--tokenizer", sample / "tokenizer", "--output", own)
        words = {
            "plan OUT -o OUT/validation": ("plan", out, *GROUPS, "--output", own),
            "plan OUT/validation": ("plan", own, *GROUPS),
            "append": ("append", own, chats),
            "pack": ("pack", *GROUPS, *corpus),
            "tokenize": ("tokenize", *corpus),
        }[command]
        done = run(main, *words)
        expected = (
            f"'{own}' is the validation set of '{out}', and follows what is planned there; name '{out}', or another"
        )
        assert (done.code, expected in done.stderr) == (2, True), done.stderr
        assert tree(out) == before

    def test_is_known_by_any_name(self, out, monkeypatch):
        monkeypatch.chdir(out / "validation")
        done = run(main, "plan", "..", *GROUPS, "--output", ".")
        assert (done.code, f"'.' is the validation set of '{out}'" in done.stderr) == (2, True)

    def test_with_another_set_is_to_be_moved(self, out, chats, pack):
        shutil.rmtree(out / "validation")
        pack(out / "validation", chats)
        assert run(main, "verify", out).code == 0  # The version has its own.
        assert run(main, "write", out).stderr.endswith(f"is not planned as the training set is; run {AGAIN}\n")
        assert "move that folder" in pack(out, chats, "--validation", "10%", code=2).stderr
        (out / "validation").rename(out / "elsewhere")
        pack(out, chats, "--validation", "10%")
        assert run(main, "verify", out).code == 0


class TestAPlan:
    def test_that_fails_leaves_both_sets(self, out, chats, pack):
        before = tree(out)
        lengths = ("--groups", "120", "--overflow", "error", "--validation", "3%")
        done = pack(out, chats, *lengths, code=1)
        assert "over the largest group's 120" in done.stderr
        assert tree(out) == before

    def test_of_other_options_is_not_of_the_pair(self, out, chats, pack, tmp_path):
        pack(tmp_path / "other", chats, "--validation", "10%", "--seed", 7)
        remove_folder(out / "validation")
        shutil.copytree(tmp_path / "other/validation", out / "validation")
        assert run(main, "verify", out).code == 0  # The version has its own.
        done, found = run(main, "write", out), state(out)
        why = f"'{out / 'validation'}' is not planned as the training set is; run {AGAIN}"
        assert (done.code, done.stderr) == (1, f"error: {why}\n")
        assert found is not None
        assert (found["state"], found["summary"]) == ("missing", why)
        pack(out, chats, "--validation", "10%")
        assert run(main, "verify", out).code == 0

    def test_that_is_lost_is_not_blamed_on_validation(self, out, packed):
        found = counts(out)
        for folder in (out, home(out)):
            (folder / "plan.arrow").unlink()
        report = json.loads(run(main, "verify", out, "--json").stdout)
        assert [damage["file"] for damage in report["damaged"]] == ["plan.arrow"]
        assert report["checked"]["validation_samples"] == counts(out / "validation")["samples"]
        words = (*GROUPS, "--algorithms", "bfs", "--workers", 1, "--json")
        assert json.loads(run(main, "compare", out, *words).stdout)["counts"]["samples"] == found["samples"]

    def test_that_is_lost_with_a_manifest_has_the_remedy_that_makes_both(self, out):
        for folder in (out, home(out)):
            (folder / "plan.arrow").unlink()
        (home(out) / "validation/hbpack.json").unlink()
        report = json.loads(run(main, "verify", out, "--json").stdout)
        repairs = {damage["file"]: damage["repair"] for damage in report["damaged"]}
        assert repairs.keys() == {"plan.arrow", "validation/hbpack.json"}
        assert all("hbpack pack again" in each for each in repairs.values()), repairs
        assert "validation_samples" not in report["checked"]

    def test_counts_what_it_left_out(self, chats, pack, tmp_path):
        out = tmp_path / "out"
        options = ("--groups", "64:1,128:1", "--overflow", "drop", "--validation", "30%")
        done = pack(out, chats, *options)
        assert counts(out / "validation")["dropped"] > 0
        files = f"{out / 'rejected.jsonl'} and {out / 'validation/rejected.jsonl'}"
        assert f"records left out or cut, with reasons: {files}" in done.stdout
        assert "dropped" in done.stdout.partition("Validation")[2].partition("pieces")[0]


class TestShardsThatAreMissing:
    def test_have_one_remedy(self, out, packed):
        aside = home(out) / "validation"
        (aside / "hbpack.json").unlink()
        remedy = f"run hbpack write {out}\n"
        assert f"validation/hbpack.json: it is missing; {remedy}" in run(main, "verify", out).stdout
        missing = f"'{aside}' holds no packed data set (no hbpack.json); {remedy}"
        done = run(main, "status", out)
        assert (done.code, missing in done.stdout) == (1, True)
        done = run(main, "rebalance", out, "--gpus", 4)
        assert (done.code, done.stderr) == (2, f"error: {missing}")
        assert run(main, "verify", out, "--repair").code == 0
        assert tree(out) == tree(packed)

    def test_have_the_size_of_those_of_training(self, chats, pack, tmp_path):
        pack(tmp_path / "out", chats, "--validation", "10%", "--shard-size", "64KiB")
        before = tree(tmp_path / "out")
        (home(tmp_path / "out") / "validation/hbpack.json").unlink()
        assert run(main, "write", tmp_path / "out").code == 0
        assert tree(tmp_path / "out") == before


class TestOtherGpus:
    def test_are_for_both_sets_or_none(self, out, monkeypatch):
        before = tree(out)
        with monkeypatch.context() as patch:
            deal = rebalance._deal
            patch.setattr(
                rebalance,
                "_deal",
                lambda folder, *given: (
                    raising(KeyboardInterrupt)() if folder.name == "validation" else deal(folder, *given)
                ),
            )
            assert run(main, "rebalance", out, "--gpus", 4).code == 130
        assert {name for name, data in before.items() if tree(out)[name] != data} == set()
        assert run(main, "verify", out).code == 0
        assert run(main, "rebalance", out, "--gpus", 4).code == 0
        assert run(main, "verify", out).code == 0


def test_a_task_of_an_array_reports_a_set_that_is_gone(out):
    remove_folder(out / "validation")
    (out / "hbpack.json").unlink()
    done = run(main, "write", out, "--shard", "0/2", "--workers", 1)
    assert (done.code, done.stderr.endswith(f"; run {AGAIN}\n")) == (1, True)


def test_tasks_of_an_array_mend_it_beside_a_complete_set(out, packed):
    remove_folder(home(out) / "validation/shards")
    (home(out) / "validation/hbpack.json").unlink()
    for task in ("0/2", "1/2"):
        assert run(main, "write", out, "--shard", task, "--workers", 1).code == 0
    assert tree(out) == tree(packed)


@pytest.mark.parametrize("command", [["rebalance", "--gpus", 4], ["write"]])
def test_it_is_not_written_on_its_own(out, command):
    done = run(main, command[0], out / "validation", *command[1:])
    assert done.code == 2
    assert f"is the validation set of '{out}', and follows what is planned there" in done.stderr


def test_reasons_of_a_failed_plan_go_with_the_next(chats, pack, tmp_path):
    out = tmp_path / "out"
    options = ["--groups", "64:1", "--overflow", "drop"]
    done = pack(out, chats, *options, "--validation", "1", code=1)
    assert "there is nothing to plan: all validation samples have more than 64 tokens" in done.stderr
    assert (out / "validation/rejected.jsonl").exists()
    pack(out, chats, *options)
    assert not (out / "validation").exists()


def test_reasons_go_with_the_next_plan_and_the_set_before_stays(out, chats, pack, tmp_path):
    (tmp_path / "less.jsonl").write_text("".join(chats.read_text(encoding="utf-8").splitlines(keepends=True)[:-1]))
    pack(out, tmp_path / "less.jsonl", "--groups", "64:1", "--overflow", "drop", "--validation", "1", code=1)
    assert [path.name for path in (out / "validation").iterdir()] == ["rejected.jsonl"]
    assert run(main, "verify", home(out)).code == 0
    pack(out, chats)
    assert not (out / "validation").exists()


def test_an_empty_folder_of_that_name_stays(chats, pack, tmp_path):
    (tmp_path / "out").mkdir()
    pack(tmp_path / "out", chats)
    (tmp_path / "out/validation").mkdir()
    assert run(main, "write", tmp_path / "out").code == 0
    assert (tmp_path / "out/validation").is_dir()
