"""An array exports what an ordinary run does."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys

import pytest

from packer_cli.folder_lock import TaskLock, lock_folder
from tests.array.conftest import PLAN
from tests.array.test_commands import KILLED
from tests.reference import home, tree


@pytest.mark.parametrize("form", ["parquet", "megatron"])
def test_an_array_exports_the_same(hbpack, plain, tmp_path, form):
    """Megatron's parts are joined."""
    words = ["export", plain, "--to", form, "--shard-size", 70_000, "--workers", 1, "--output"]
    assert hbpack(*words, tmp_path / "plain").code == 0
    out = tmp_path / "out"
    if form == "megatron":
        command = [sys.executable, "-c", KILLED, *map(str, [*words, out]), "--shard", "1/3"]
        assert subprocess.run(command, capture_output=True).returncode == -signal.SIGKILL
    for index in (2, 0):
        assert hbpack(*words, out, "--shard", f"{index}/3").code == 0
    done = hbpack("status", out)
    assert done.code == 1
    assert "2 of 3 tasks done, 1 missing; " in done.stdout
    assert "with --array=1 in Slurm" in done.stdout
    done = hbpack(*words, out, SLURM_ARRAY_TASK_ID=1, SLURM_ARRAY_TASK_MIN=1, SLURM_ARRAY_TASK_COUNT=1)
    assert "all tasks are done, and the export is complete: " in done.stderr
    assert tree(out) == tree(tmp_path / "plain")
    assert hbpack("status", out).code == 0
    done = hbpack(*words, out, "--shard", "0/5")
    assert done.stderr == "the export is complete, and the files of task 0/5 are intact\n"
    path = next(path for path in out.rglob("*") if path.suffix in (".parquet", ".bin"))
    path.write_bytes(b"x" + path.read_bytes()[1:])
    told = [hbpack(*words, out, "--shard", f"{index}/3") for index in range(3)]
    remedy = "run the same hbpack export with --shard 0/1 to write what is damaged again"
    assert [done.stderr for done in told if done.code] == [f"error: '{out}' is damaged; {remedy}\n"]
    assert hbpack(*words, out, "--shard", "0/1").code == 0
    assert tree(out) == tree(tmp_path / "plain")


def test_a_damaged_set_is_found_before_the_export_is_complete(hbpack, plain, tmp_path):
    packed, out = shutil.copytree(plain, tmp_path / "packed", symlinks=True), tmp_path / "out"
    words = ["export", packed, "--to", "parquet", "--shard-size", 70_000, "--output", out]
    shard = sorted(home(packed).glob("shards/*/*.arrow"))[-1]
    intact = shard.read_bytes()
    shard.write_bytes(intact[:20_000] + bytes([intact[20_000] ^ 1]) + intact[20_001:])
    assert hbpack(*words, "--shard", "0/2").code == 0
    done = hbpack(*words, "--shard", "1/2")
    assert done.code == 1
    assert f"'{shard}' is damaged" in done.stderr
    shard.write_bytes(intact)
    assert "1 of 2 tasks are done" in hbpack(*words, "--shard", "1/2").stderr
    assert hbpack(*words, "--shard", "0/2").code == 0
    assert hbpack("status", out).code == 0


def test_a_set_that_changes_before_its_export_is_complete(hbpack, plain, tmp_path):
    packed, out = shutil.copytree(plain, tmp_path / "packed", symlinks=True), tmp_path / "out"
    words = ["export", packed, "--to", "parquet", "--output", out, "--shard"]
    assert hbpack(*words, "0/2").code == 0
    with lock_folder(out, TaskLock("export", 7)):  # As a task that runs meanwhile, so that this one is not the last.
        assert hbpack(*words, "1/2").code == 0
    assert hbpack("plan", packed, *PLAN, "--seed", 1).code == 0
    assert hbpack("write", packed, "--workers", 1).code == 0
    assert "holds an export of another packed set; " in hbpack(*words, "0/2").stderr
