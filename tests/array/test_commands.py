"""Arrays of tokenize and write end in the bytes of ordinary runs: in any order, killed, run again, side by side."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys

import pytest

from packer_cli.folder_lock import LOCK_NAME, TaskLock, lock_folder
from packer_cli.format.checksums import file_checksum, find_damage
from tests.array.conftest import NUM_TASKS, PLAN, SHARD_SIZE
from tests.cli_runner import HBPACK
from tests.reference import home, remove_written, store_parts, tree

KILLED = """
import os, signal, sys
from packer_cli.engine.output import Parts
mark = Parts.mark
def killing(self, written):
    mark(self, written)
    os.kill(os.getpid(), signal.SIGKILL)
Parts.mark = killing
from packer_cli.cli.main import main
sys.argv = ["hbpack", *sys.argv[1:]]
main()
"""
"""The command line, killed once the first part has its marker."""


def store(folder):
    return tree(folder / "tokens")


def test_an_array_in_any_order_makes_the_same_store_and_set(hbpack, tokenize_words, plain, tmp_path):
    out = tmp_path / "out"
    for index in (2, 0, 3, 1):
        done = hbpack(*tokenize_words, out, "--shard", f"{index}/{NUM_TASKS}")
        assert done.code == 0, done.stderr
        assert re.search(r"^made \d parts? \(", done.stderr, re.MULTILINE)
    assert "all tasks are done, and the token store is complete: 420 samples" in done.stderr
    assert store(out) == store(plain)
    assert len(list(out.glob("tokens/part-*.arrow"))) >= 6
    assert hbpack("plan", out, *PLAN).code == 0
    for index in (3, 1, 0, 2):
        done = hbpack("write", out, *SHARD_SIZE, "--shard", f"{index}/{NUM_TASKS}", "--workers", 1)
        assert done.code == 0, done.stderr
    assert "all tasks are done, and the set is complete: " in done.stderr
    assert tree(out) == tree(plain)
    assert len(list(home(out).glob("shards/*/*.arrow"))) >= 3


def test_an_unfinished_store_says_which_tasks_are_missing(hbpack, tokenize_words, tmp_path):
    out = tmp_path / "out"
    for index in range(NUM_TASKS):
        if index == NUM_TASKS - 1:
            unfinished = (
                f"error: the token store '{out}/tokens' is unfinished: {NUM_TASKS - 1} of the {NUM_TASKS} tasks of an "
                "array are done; hbpack status says which are missing, and what makes the rest\n"
            )
            for words in (["plan", out, *PLAN], ["stats", out], ["compare", out, *PLAN]):
                done = hbpack(*words)
                assert (done.code, done.stderr) == (2, unfinished)
        assert hbpack(*tokenize_words, out, "--shard", f"{index}/{NUM_TASKS}").code == 0
    assert hbpack("plan", out, *PLAN).code == 0


def test_a_task_that_is_killed_runs_again_as_the_status_says(hbpack, tokenize_words, plain, tmp_path):
    """Real processes at the same time; one of them is killed after its first part."""
    out = tmp_path / "out"

    def start(index: int, *command: str) -> subprocess.Popen:
        words = [*command, *tokenize_words, str(out), "--shard", f"{index}/{NUM_TASKS}"]
        return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    tasks = [start(1, sys.executable, "-c", KILLED), start(3, *HBPACK)]
    assert hbpack(*tokenize_words, out, "--shard", f"0/{NUM_TASKS}").code == 0
    errors = [task.communicate()[1].decode() for task in tasks]
    assert [task.returncode for task in tasks] == [-signal.SIGKILL, 0], errors
    done = hbpack("status", out)
    assert done.code == 1
    assert "tokens   unfinished   2 of 4 tasks done, 2 missing; " in done.stdout
    assert "--array=1-2 in Slurm, or with --shard I/4 for each" in done.stdout
    for index in (2, 1):
        ids = {"ID": index, "MIN": 1, "MAX": 2, "COUNT": 2, "STEP": 1}
        done = hbpack(*tokenize_words, out, **{f"SLURM_ARRAY_TASK_{name}": value for name, value in ids.items()})
        assert done.code == 0, done.stderr
    assert "reused" in done.stderr
    assert store(out) == store(plain)


def test_an_array_over_a_store_takes_what_changed(hbpack, corpus, tokenize_words, tmp_path):
    """A new file at once; in a changed one that a task does not read, only the tasks that read it see the change."""
    data = shutil.copytree(corpus, tmp_path / "data")
    words = ["tokenize", data, *tokenize_words[2:]]

    def round_of_tasks() -> str:
        return [hbpack(*words, tmp_path / "out", "--shard", f"{index}/2").stderr for index in range(2)][-1]

    round_of_tasks()
    shutil.copy(data / "c.jsonl", data / "d.jsonl")
    assert "all tasks are done, and the token store is complete: " in round_of_tasks()
    lines = (data / "a.jsonl").read_text().splitlines(keepends=True)
    (data / "a.jsonl").write_text("".join([*lines[1:20], lines[0], *lines[20:]]))
    round_of_tasks()
    assert hbpack("status", tmp_path / "out").code == 1
    round_of_tasks()
    assert hbpack(*words, tmp_path / "fresh").code == 0
    assert tree(tmp_path / "out" / "tokens") == tree(tmp_path / "fresh" / "tokens")


@pytest.fixture
def written(plain, tmp_path):
    return shutil.copytree(plain, tmp_path / "out", symlinks=True)


def test_a_task_of_a_complete_output_changes_nothing(hbpack, tokenize_words, written):
    before = {path: path.stat().st_mtime_ns for path in written.rglob("*") if path.is_file()}
    done = hbpack(*tokenize_words, written, "--shard", "1/4")
    assert done.stderr.splitlines()[-1] == "the token store is complete, and the files of task 1/4 are intact"
    done = hbpack("write", written, "--shard", "2/7")
    assert done.stderr == "the set is complete, and the files of task 2/7 are intact\n"
    assert {path: path.stat().st_mtime_ns for path in written.rglob("*") if path.is_file()} == before


def test_a_task_repairs_what_is_damaged_of_its_share(hbpack, tokenize_words, written, plain):
    part = store_parts(written)[-1]
    shard = sorted(home(written).glob("shards/*/*.arrow"))[0]
    for path in (part, shard):
        path.write_bytes(b"x" + path.read_bytes()[1:])
    assert hbpack(*tokenize_words, written, "--shard", "0/2").code == 0
    assert part.read_bytes() != (plain / part.relative_to(written)).read_bytes()
    assert hbpack(*tokenize_words, written, "--shard", "1/2").code == 0
    assert hbpack("write", written, "--shard", "0/2").code == 0
    assert tree(written) == tree(plain)


def test_an_ordinary_run_ends_what_tasks_have_begun(hbpack, tokenize_words, plain, tmp_path):
    out = tmp_path / "out"
    assert hbpack(*tokenize_words, out, "--shard", "0/2").code == 0
    done = hbpack(*tokenize_words, out, "--shard", "0/1", SLURM_ARRAY_TASK_ID=0, SLURM_ARRAY_TASK_COUNT=2)
    assert "and reused" in done.stderr
    assert store(out) == store(plain)
    assert not (out / "tokens" / ".parts").exists()


def test_an_ordinary_run_that_is_killed_ends_the_array(hbpack, tokenize_words, plain, tmp_path):
    """It has replaced a part of a task that was done, so that task has to run again."""
    out = tmp_path / "out"
    words = [*tokenize_words, str(out)]
    assert hbpack(*words, "--shard", "0/2").code == 0
    killed = subprocess.run([sys.executable, "-c", KILLED, *words, "--loss-on", "all"], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert "written; run the same hbpack tokenize or pack again" in hbpack("status", out).stdout
    assert "1 of 2 tasks are done" in hbpack(*words, "--shard", "1/2").stderr
    assert hbpack(*words, "--shard", "0/2").code == 0
    assert store(out) == store(plain)


def test_other_inputs_start_over_and_keep_what_fits(hbpack, tokenize_words, corpus, written, tmp_path):
    """Parts that have not changed stay, and so do those that only the version made of the earlier store needs."""
    earlier = store(written)
    more = tmp_path / "z.jsonl"
    more.write_text('{"text": "more"}\n')
    words = [*tokenize_words[:2], str(more), *tokenize_words[2:]]
    for index in range(2):
        done = hbpack(*words, written, "--shard", f"{index}/2")
        assert done.code == 0, done.stderr
    assert "all tasks are done" in done.stderr
    expected = tmp_path / "expected"
    assert hbpack(*words, expected).code == 0
    wanted = store(expected)
    assert store(written) == {name: wanted.get(name, data) for name, data in (earlier | wanted).items()}


def test_a_damaged_token_store_is_found_before_the_set_is_complete(hbpack, written, plain):
    """Each task reads its share of the store, and the shards of the others may hold what one of them finds."""
    remove_written(written)
    part = store_parts(written)[-1]
    intact = part.read_bytes()
    before = file_checksum(part)
    part.write_bytes(intact[:-5000] + b"x" + intact[-4999:])
    assert hbpack("write", written, *SHARD_SIZE, "--shard", "0/2").code == 0
    done = hbpack("write", written, *SHARD_SIZE, "--shard", "1/2")
    assert (done.code, done.stderr.splitlines()[-1]) == (
        1,
        (
            f"error: token store part '{part}' is damaged ({find_damage(part, None, before, 'tokens.json')}); run the "
            "same hbpack tokenize or pack again"
        ),
    )
    part.write_bytes(intact)
    done = hbpack("write", written, *SHARD_SIZE, "--shard", "1/2")
    assert "1 of 2 tasks are done" in done.stderr
    assert hbpack("write", written, *SHARD_SIZE, "--shard", "0/2").code == 0
    assert tree(written) == tree(plain)


def test_a_task_cannot_restore_a_lost_schedule(hbpack, plain, tmp_path):
    """It would change files that are another task's."""
    out = shutil.copytree(plain, tmp_path / "out", symlinks=True)
    assert hbpack("rebalance", out, "--gpus", 4).code == 0
    (path,) = home(out).glob("ranks/rebalanced-*/schedules.arrow")
    path.write_bytes(b"")
    told = [hbpack("write", out, "--shard", f"{index}/2") for index in range(2)]
    remedy = "run hbpack write --shard 0/1 to write what is damaged again"
    assert [done.stderr.splitlines()[-1] for done in told if done.code] == [f"error: '{out}' is damaged; {remedy}"]
    assert hbpack("write", out, "--shard", "0/1", "--workers", 1).code == 0
    assert tree(out) == tree(plain)


def test_an_array_without_data(hbpack, tokenize_words, tmp_path):
    """Only the last task knows that the others have found none either."""
    empty = tmp_path / "empty.jsonl"
    empty.touch()
    words = [tokenize_words[0], empty, *tokenize_words[2:], tmp_path / "out", "--shard"]
    assert hbpack(*words, "0/2").code == 0
    done = hbpack(*words, "1/2")
    assert (done.code, done.stderr.splitlines()[-1]) == (1, f"error: the inputs hold no data: {empty}; name others")


def test_too_many_rejected_over_all_tasks(hbpack, tokenize_words, plain, tmp_path):
    """Each task counts its own, and the last one all of them. A rerun may raise the limit."""
    out = tmp_path / "out"
    words = [*tokenize_words, out, "--max-rejected"]
    for index in range(NUM_TASKS):
        done = hbpack(*words, 1, "--shard", f"{index}/{NUM_TASKS}")
        assert done.code == (index == NUM_TASKS - 1)
    assert "2 of 422 records (0.47%) rejected, more than --max-rejected 1, " in done.stderr
    again = hbpack(*words, 1, "--shard", f"0/{NUM_TASKS}")
    assert "2 of 422 records (0.47%) rejected, more than --max-rejected 1, " in again.stderr
    assert hbpack(*words, 2, "--shard", f"1/{NUM_TASKS}").code == 0
    assert store(out) == store(plain)


def test_a_task_that_runs_again_completes_what_none_could(hbpack, tokenize_words, plain, tmp_path):
    out = tmp_path / "out"
    assert hbpack(*tokenize_words, out, "--shard", "0/2").code == 0
    with lock_folder(out, TaskLock("tokenize", 7)):  # As a task that runs meanwhile.
        done = hbpack(*tokenize_words, out, "--shard", "1/2")
        assert done.stderr.endswith("2 of 2 tasks are done, the last one to end completes the output\n")
        assert "All tasks are done" not in hbpack("status", out).stdout
    before = tree(out)
    done = hbpack("status", out)
    assert "All tasks are done, and none completed the output; run one again, with --shard 0/2." in done.stdout
    assert (done.code, tree(out)) == (1, before)
    assert hbpack(*tokenize_words, out, "--shard", "0/2").code == 0
    assert json.loads(hbpack("status", out, "--stage", "tokens", "--json").stdout)["complete"]
    assert store(out) == store(plain)


class KilledError(BaseException):
    """The end of a process at some moment."""


def remove_one(folder):
    next(path for path in sorted(folder.rglob("*.json"))).unlink()
    raise KilledError


def remove_nothing(*_):
    raise KilledError


@pytest.mark.parametrize(
    ("stage", "place", "kill"),
    [
        ("tokenize", "packer_cli.commands.tokenize.write_rejected", remove_nothing),
        ("tokenize", "packer_cli.engine.sink.remove_folder", remove_one),
        ("write --no-keep-tokens", "packer_cli.commands.write.remove_folder", remove_nothing),
        ("write --no-keep-tokens", "packer_cli.engine.output.remove_work", remove_nothing),
        ("write", "packer_cli.engine.sink.remove_folder", remove_one),
        ("export", "packer_cli.engine.output.remove_work", remove_nothing),
        ("export", "packer_cli.engine.sink.remove_folder", remove_one),
    ],
)
def test_a_task_that_was_killed_while_it_completed_the_output(
    hbpack, tokenize_words, written, plain, tmp_path, monkeypatch, stage, place, kill
):
    """The same task, run again, leaves what an ordinary run does."""
    name, _, option = stage.partition(" ")
    if name == "tokenize":
        shutil.rmtree(written)
        words, expected = [*tokenize_words, written], tmp_path / "expected"
        assert hbpack(*tokenize_words, expected).code == 0
    elif name == "write":
        remove_written(written)
        expected = shutil.copytree(written, tmp_path / "expected")
        words = ["write", written, *SHARD_SIZE, *option.split(), "--workers", 1]
        assert hbpack("write", expected, *words[2:]).code == 0
    else:
        words, written, expected = ["export", plain, "--to", "mds", "--output"], tmp_path / "x", tmp_path / "expected"
        assert hbpack(*words, expected).code == 0
        words.append(written)
    assert hbpack(*words, "--shard", "0/2").code == 0
    with monkeypatch.context() as patch:
        patch.setattr(place, kill)
        with pytest.raises(KilledError):
            hbpack(*words, "--shard", "1/2")
    assert tree(written) != tree(expected)
    assert hbpack(*words, "--shard", "1/2").code == 0
    assert tree(written) == tree(expected)


def test_pack_in_an_array_job_makes_all_of_it(hbpack, tokenize_words, plain, tmp_path):
    words = ["pack", *tokenize_words[1:], tmp_path / "out", *PLAN, *SHARD_SIZE]
    assert hbpack(*words, SLURM_ARRAY_TASK_ID=1, SLURM_ARRAY_TASK_COUNT=4, JOB_COMPLETION_INDEX=1).code == 0
    assert tree(tmp_path / "out") == tree(plain)


def test_locks_of_tasks(hbpack, tokenize_words, plain, tmp_path):
    out = shutil.copytree(plain, tmp_path / "out", symlinks=True)
    with lock_folder(out, TaskLock("tokenize", 1)), lock_folder(out, TaskLock("tokenize", 2)):
        done = hbpack(*tokenize_words, out, "--shard", "1/4")
        assert done.stderr == (
            f"error: output folder '{out}': another process runs task 1; wait until that has ended, or name another "
            "folder\n"
        )
        done = hbpack("write", out, "--shard", "3/4")
        assert done.stderr == (
            f"error: output folder '{out}': tasks of hbpack tokenize write to it; wait until that has ended, or name "
            "another folder\n"
        )
        done = hbpack("plan", out, *PLAN)
        assert done.stderr == (
            f"error: output folder '{out}': another hbpack run writes to it; wait until that has ended, or name "
            "another folder\n"
        )
        assert hbpack(*tokenize_words, out, "--shard", "0/4").code == 0
        assert {path.name for path in out.glob(f"{LOCK_NAME}*")} == {
            f"{LOCK_NAME}.tokenize.1", f"{LOCK_NAME}.tokenize.2",
        }  # fmt: skip
    assert tree(out) == tree(plain)


def test_the_status_of_each_state(hbpack, tokenize_words, plain, tmp_path):
    done = hbpack("status", tmp_path / "gone")
    assert (done.code, done.stderr) == (
        2, f"error: '{tmp_path}/gone' is not a folder; name the output of an hbpack command\n"
    )  # fmt: skip
    done = hbpack("status", tmp_path)
    assert (done.code, done.stderr) == (
        2, f"error: '{tmp_path}' holds no output of hbpack; name the folder given as --output\n"
    )  # fmt: skip
    done = hbpack("status", plain)
    assert done.code == 0
    assert [line.split()[:2] for line in done.stdout.splitlines()[4:7]] == [
        ["tokens", "complete"], ["plan", "complete"], ["shards", "complete"],
    ]  # fmt: skip
    out = shutil.copytree(plain, tmp_path / "out", symlinks=True)
    assert hbpack("plan", out, "--groups", "8k", "--gpus", 8).code == 0
    done = hbpack("status", out)
    assert done.code == 1
    assert "shards   missing    of an earlier plan, and holds until then; run hbpack write" in done.stdout
    assert hbpack("status", out, "--stage", "plan").code == 0
    assert hbpack("write", out, *SHARD_SIZE, "--shard", "1/3").code == 0
    with lock_folder(out, TaskLock("write", 2)):
        done = hbpack("status", out)
    assert "1 of 3 tasks done, 1 running, 1 missing; " in done.stdout
    assert "Running: 2 on " in done.stdout
    assert "with --array=0 in Slurm, or with --shard I/3 for each" in done.stdout
    with lock_folder(out):
        assert "An hbpack run writes here: process " in hbpack("status", out).stdout
