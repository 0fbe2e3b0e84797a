"""One run at a time writes to an output folder, and a killed one hinders nobody."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace

import pytest

from packer_cli.cli.main import main
from packer_cli.folder_lock import LOCK_NAME, lock_folder
from packer_cli.shards.manifest import read_manifest
from tests.cli_runner import HBPACK, pack_words, run
from tests.reference import current_tree, home, tree


@pytest.fixture(scope="module")
def arguments(repo):
    return [*pack_words(repo, "chats.jsonl"), "--workers", "1", "--output"]


@pytest.fixture(scope="module")
def packed(arguments, tmp_path_factory):
    out = tmp_path_factory.mktemp("packed") / "out"
    assert run(main, *arguments, out).code == 0
    return out


def holder(folder):
    """A process that has the folder to itself until its input ends."""
    code = (
        "import pathlib, sys; from packer_cli.folder_lock import lock_folder\n"
        "with lock_folder(pathlib.Path(sys.argv[1])):\n    print('held', flush=True); sys.stdin.read()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "held\n"
    return process


@pytest.mark.parametrize("command", ["pack", "plan", "write"])
def test_a_second_run_is_refused(arguments, packed, command):
    before = tree(packed)
    words = {
        "pack": [*arguments, str(packed)],
        "plan": ["plan", str(packed), "--groups", "8k", "--gpus", "8"],
        "write": ["write", str(packed), "--workers", "1"],
    }[command]
    with holder(packed) as process:
        done = run(main, *words)
        process.stdin.close()
    assert done.code == os.EX_TEMPFAIL
    assert done.stderr == (
        f"error: output folder {str(packed)!r}: another hbpack run writes to it; wait until that has ended, "
        "or name another folder\n"
    )
    assert tree(packed) == before  # Its holder took the lock's file along.


def test_runs_at_once_end_in_one_whole_set(arguments, packed, tmp_path):
    command = [*HBPACK, *arguments, str(tmp_path / "out")]
    runs = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    results = [(process.communicate()[1], process.returncode) for process in runs]
    codes = sorted(code for _, code in results)
    assert codes[0] == 0
    assert set(codes) <= {0, os.EX_TEMPFAIL}
    assert all("another hbpack run writes to it" in text for text, code in results if code)
    assert tree(tmp_path / "out") == tree(packed)


def test_a_killed_run_does_not_block_the_next(arguments, packed, tmp_path):
    out = tmp_path / "out"
    process = holder(out)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    assert [path.name for path in out.iterdir()] == [LOCK_NAME]
    assert run(main, *arguments, out).code == 0
    assert tree(out) == tree(packed)


def test_what_is_wrong_with_the_call_leaves_no_folder(arguments, tmp_path):
    assert run(main, *arguments, tmp_path / "a" / "b", "--packing", "x").code == 2
    assert not list(tmp_path.iterdir())


def test_a_plan_elsewhere_may_be_read_while_its_store_is_written(packed, tmp_path):
    """The lock is of the folder that is written, not of the store that is read."""
    with lock_folder(packed):
        done = run(main, "plan", packed, "--groups", "8k", "--gpus", 8, "--output", tmp_path / "other")
    assert done.code == 0


KILLED = """
import os
from packer_cli.cli.main import main
from packer_cli.shards import plan_file
plan_file.write_plan = lambda *arguments: os._exit(9)
main()
"""


def test_a_plan_elsewhere_goes_on_where_it_was_killed(packed, tmp_path):
    """The old plan and the set stay until the new ones take their places."""
    other, fresh = tmp_path / "other", tmp_path / "fresh"
    words = ["plan", str(packed), "--gpus", "8", "--groups"]
    assert run(main, *words, "8k", "--output", other).code == 0
    assert run(main, "write", other, "--workers", 1).code == 0
    before = read_manifest(other)
    done = subprocess.run([sys.executable, "-c", KILLED, *words, "4k,8k", "--output", other], capture_output=True)
    assert done.returncode == 9
    assert run(main, "verify", other).code == 0
    assert read_manifest(other) == before
    for out in (other, fresh):
        assert run(main, *words, "4k,8k", "--output", out).code == 0
        assert run(main, "write", out, "--workers", 1).code == 0
    assert current_tree(other) == current_tree(fresh)
    assert home(other) != other / before.folder
    assert read_manifest(other / before.folder) == replace(before, folder=None)


@pytest.mark.slow
def test_a_plan_elsewhere_of_nothing_can_be_made_again(packed, tmp_path):
    other = tmp_path / "other"
    words = ["plan", str(packed), "--gpus", "8", "--output", str(other), "--overflow", "drop", "--groups"]
    for _ in range(2):
        assert "\nerror: there is nothing to plan" in run(main, *words, "1").stderr
        assert [path.name for path in other.iterdir()] == ["rejected.jsonl"]
    for capacity in ("8k", "9k"):
        assert subprocess.run([sys.executable, "-c", KILLED, *words, capacity], capture_output=True).returncode == 9
        (other / ".plan.arrow.1.tmp").touch()
        assert run(main, *words, capacity).code == 0
        assert run(main, "write", other, "--workers", 1).code == 0
        (home(other) / ".shards").mkdir()  # A killed write leaves it.


def test_a_plan_of_nothing_leaves_the_set_as_it_was(packed, tmp_path):
    out = shutil.copytree(packed, tmp_path / "out", symlinks=True)
    before = tree(out)
    done = run(main, "plan", out, "--gpus", 8, "--groups", "1", "--overflow", "drop")
    assert done.code == 1
    assert done.stderr == (
        "changed: --groups 1:1 (was 1k:1,8k:4), --overflow drop (was split)\n"
        "error: there is nothing to plan: all samples have more than 1 tokens, and --overflow drop leaves them out; "
        "give longer --groups, or another --overflow\n"
    )
    assert tree(out) == before


def test_a_killed_write_remembers_its_options(packed, tmp_path):
    """Those of the set, which `write` takes over, are in the set's manifest, while its version is repaired."""
    out = shutil.copytree(packed, tmp_path / "out", symlinks=True)
    assert run(main, "write", out, "--shard-size", "100kB", "--workers", 1).code == 0
    before = tree(out)
    next((home(out) / "shards").rglob("*.arrow")).unlink()
    (home(out) / "hbpack.json").unlink()
    (home(out) / ".shards").mkdir()
    assert run(main, "write", out, "--workers", 1).code == 0
    assert tree(out) == before


def test_reasons_of_somebody_else_are_not_touched(packed, tmp_path):
    (tmp_path / "rejected.jsonl").write_text('{"id": 1}\n')
    done = run(main, "plan", packed, "--gpus", 8, "--groups", "8k", "--output", tmp_path)
    assert done.code == 2
    assert "holds something else (rejected.jsonl)" in done.stderr
