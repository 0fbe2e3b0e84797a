"""A validation set beside the training set: never samples of both, nothing of the user's removed, one remedy."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from packer_cli.cli.main import main
from packer_cli.commands import output_folder, plan_store, rebalance
from packer_cli.files import remove_folder
from tests.cli_runner import run
from tests.commands.conftest import GROUPS
from tests.reference import tree

AGAIN = "the same hbpack pack again, or hbpack plan and hbpack write"


def raising(error: type[BaseException]):
    def call(*arguments: object, **options: object):
        raise error

    return call


def counts(folder: Path) -> dict[str, int]:
    return json.loads((folder / "hbpack.json").read_text())["counts"]


def state(out: Path) -> dict[str, str] | None:
    """The stage of the validation set, as `hbpack status` tells it."""
    stages = json.loads(run(main, "status", out, "--json").stdout)["stages"]
    return next((stage for stage in stages if stage["stage"] == "validation"), None)


class TestASetThatIsDropped:
    def test_is_not_read_beside_a_plan_that_trains_on_it(self, out, chats, pack, monkeypatch):
        with monkeypatch.context() as patch:
            patch.setattr(plan_store, "write_plan", raising(KeyboardInterrupt))
            pack(out, chats, code=130)
        assert not (out / "validation/hbpack.json").exists()
        assert run(main, "write", out).code == 0  # The plan that is there sets samples aside.
        assert run(main, "verify", out).code == 0

    def test_is_removed_by_write_where_the_run_was_killed(self, out, chats, pack, tmp_path, monkeypatch):
        with monkeypatch.context() as patch:
            patch.setattr(output_folder, "remove_folder", raising(KeyboardInterrupt))
            pack(out, chats, code=130)
        assert (out / "validation/plan.arrow").exists()
        found = state(out)
        assert found is not None
        assert (found["state"], found["summary"]) == (
            "unfinished",
            f"it holds samples that are in the training set, too; run hbpack write {out}",
        )
        done = run(main, "write", out)
        assert (done.code, f"removed {out / 'validation'}\n" in done.stderr) == (0, True)
        pack(tmp_path / "without", chats)
        assert tree(out) == tree(tmp_path / "without")

    def test_is_found_by_verify(self, out, packed, chats, pack):
        pack(out, chats)
        shutil.copytree(packed / "validation", out / "validation")
        done = run(main, "verify", out)
        expected = f"validation: it holds samples that are in the training set, too; run hbpack write {out}\n"
        assert (done.code, expected in done.stdout) == (1, True)
        assert run(main, "verify", out, "--repair").code == 0
        assert not (out / "validation").exists()

    def test_stays_where_it_cannot_be_removed(self, out, chats, pack, monkeypatch):
        before = tree(out)
        access = os.access
        monkeypatch.setattr(os, "access", lambda path, mode: Path(path).name != "validation" and access(path, mode))
        done = pack(out, chats, code=2)
        assert "cannot be written to" in done.stderr
        assert tree(out) == before

    def test_leaves_files_of_the_user(self, out, chats, pack):
        (out / "validation/notes.txt").write_text("mine")
        (out / "validation/ckpt").mkdir()
        (out / "validation/ckpt/a.bin").write_text("mine")
        done = pack(out, chats)
        assert f"removed {out / 'validation'}, but not what hbpack did not write (ckpt, notes.txt)" in done.stderr
        assert sorted(tree(out / "validation")) == ["ckpt/a.bin", "notes.txt"]
        assert run(main, "verify", out).code == 0

    def test_of_an_unreadable_plan_is_told(self, out, chats, pack):
        (out / "validation/hbpack.json").unlink()
        (out / "validation/plan.arrow").write_text("broken")
        done = pack(out, chats)
        assert f"'{out / 'validation/plan.arrow'}' cannot be read, so '{out / 'validation'}' stays" in done.stderr

    def test_is_no_link(self, out, chats, pack, tmp_path):
        (out / "validation").rename(tmp_path / "elsewhere")
        (out / "validation").symlink_to(tmp_path / "elsewhere")
        before = tree(tmp_path / "elsewhere")
        for arguments in ((), ("--validation", "5%")):
            assert "is a link" in pack(out, chats, *arguments, code=2).stderr
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
        remedy = f"mv {out / 'validation'} ELSEWHERE, then {AGAIN}"
        assert run(main, "verify", out).stderr.endswith(f"; run {remedy}\n")
        assert run(main, "write", out).stderr.endswith(f"; run {remedy}\n")
        assert f"Next: {remedy}" in run(main, "status", out).stdout
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
        done = run(main, "verify", out)
        assert (done.code, f"validation: it is not planned as the training set is; run {AGAIN}" in done.stdout) == (
            1,
            True,
        )
        assert run(main, "write", out).code == 1
        found = state(out)
        assert found is not None
        assert found["state"] == "missing"
        pack(out, chats, "--validation", "10%")
        assert run(main, "verify", out).code == 0

    def test_that_is_lost_is_not_blamed_on_validation(self, out, packed):
        found = counts(out)
        (out / "plan.arrow").unlink()
        report = json.loads(run(main, "verify", out, "--json").stdout)
        assert [damage["file"] for damage in report["damaged"]] == ["plan.arrow"]
        assert "validation: whether it is of the same plan: plan.arrow cannot be read" in report["not_checked"]
        words = (*GROUPS, "--algorithms", "bfs", "--workers", 1, "--json")
        assert json.loads(run(main, "compare", out, *words).stdout)["counts"]["samples"] == found["samples"]

    def test_that_is_lost_with_a_manifest_has_the_remedy_that_makes_both(self, out):
        (out / "plan.arrow").unlink()
        (out / "validation/hbpack.json").unlink()
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
        (out / "validation/hbpack.json").unlink()
        remedy = f"hbpack write {out}"
        assert f"validation: its shards are not written; run {remedy}\n" in run(main, "verify", out).stdout
        assert f"Next: {remedy}" in run(main, "status", out).stdout
        done = run(main, "rebalance", out, "--gpus", 4)
        assert (done.code, done.stderr) == (
            1,
            f"error: '{out / 'validation'}': its shards are not written; run {remedy}\n",
        )
        assert run(main, "verify", out, "--repair").code == 0
        assert tree(out) == tree(packed)

    def test_have_the_size_of_those_of_training(self, chats, pack, tmp_path):
        pack(tmp_path / "out", chats, "--validation", "10%", "--shard-size", "64KiB")
        before = tree(tmp_path / "out")
        (tmp_path / "out/validation/hbpack.json").unlink()
        assert run(main, "write", tmp_path / "out").code == 0
        assert tree(tmp_path / "out") == before


class TestOtherGpus:
    def test_are_for_both_sets_or_none(self, out, monkeypatch):
        before = tree(out)
        with monkeypatch.context() as patch:
            access = os.access
            patch.setattr(os, "access", lambda path, mode: Path(path).name != "validation" and access(path, mode))
            done = run(main, "rebalance", out, "--gpus", 4)
            assert (done.code, "cannot be written to" in done.stderr) == (2, True)
        assert tree(out) == before
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
        assert (out / "hbpack.json").read_bytes() == before["hbpack.json"]
        assert run(main, "rebalance", out, "--gpus", 4).code == 0
        assert run(main, "verify", out).code == 0

    def test_leave_no_lock_of_a_killed_run(self, out):
        assert run(main, "rebalance", out, "--gpus", 4).code == 0
        (out / "validation/.hbpack.lock").touch()
        assert run(main, "rebalance", out, "--gpus", 4).code == 0
        assert not (out / "validation/.hbpack.lock").exists()


def test_a_task_of_an_array_reports_a_set_that_is_gone(out):
    remove_folder(out / "validation")
    (out / "hbpack.json").unlink()
    done = run(main, "write", out, "--shard", "0/2", "--workers", 1)
    assert (done.code, done.stderr.endswith(f"; run {AGAIN}\n")) == (1, True)


def test_tasks_of_an_array_mend_it_beside_a_complete_set(out, packed):
    remove_folder(out / "validation/shards")
    (out / "validation/hbpack.json").unlink()
    for task in ("0/2", "1/2"):
        assert run(main, "write", out, "--shard", task, "--workers", 1).code == 0
    assert tree(out / "validation") == tree(packed / "validation")


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


def test_reasons_go_with_the_shards_of_the_plan_before(out, chats, pack, tmp_path):
    (tmp_path / "less.jsonl").write_text("".join(chats.read_text(encoding="utf-8").splitlines(keepends=True)[:-1]))
    pack(out, tmp_path / "less.jsonl", "--groups", "64:1", "--overflow", "drop", "--validation", "1", code=1)
    assert sorted(path.name for path in (out / "validation").iterdir()) == ["ranks", "rejected.jsonl", "shards"]
    pack(out, chats)
    assert not (out / "validation").exists()


def test_an_empty_folder_of_that_name_stays(chats, pack, tmp_path):
    (tmp_path / "out").mkdir()
    pack(tmp_path / "out", chats)
    (tmp_path / "out/validation").mkdir()
    assert run(main, "write", tmp_path / "out").code == 0
    assert (tmp_path / "out/validation").is_dir()
