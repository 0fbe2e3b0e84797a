"""Changed, damaged and interrupted: what is still right is reused, the rest made anew, and the bytes are the same."""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
import signal
import subprocess
import time

import psutil
import pytest

from packer_cli.files import HashingFile
from tests.cli.conftest import GROUPS
from tests.cli_runner import HBPACK, run_process
from tests.reference import current_tree, home, read_packs, remove_written, tree

UP_TO_DATE = ["the plan is up to date", "the shards are up to date"]


def test_a_changed_input_is_read_again(pack, lines_of, tmp_path):
    path = lines_of({"text": "one"}, {"text": "two"})
    assert pack(path).code == 0
    lines_of({"text": "one"}, {"text": "TWO"})
    changed = pack(path)
    assert not set(UP_TO_DATE) & set(changed.stderr.splitlines())
    assert pack(path, output=tmp_path / "fresh").code == 0
    assert current_tree(tmp_path / "out") == tree(tmp_path / "fresh")


def test_a_changed_tokenizer_is_loaded_again(pack, chats, tokenizer, tmp_path):
    copy = tmp_path / "tokenizer"
    shutil.copytree(tokenizer, copy)
    assert pack(chats, "--tokenizer", copy).code == 0
    config = json.loads((copy / "tokenizer_config.json").read_text())
    config["chat_template"] = "{% for message in messages %}{{ message.content }}{% endfor %}"
    (copy / "tokenizer_config.json").write_text(json.dumps(config))
    before = sum(len(pack["input_ids"]) for pack in read_packs(tmp_path / "out"))
    assert pack(chats, "--tokenizer", copy).code == 0
    assert sum(len(pack["input_ids"]) for pack in read_packs(tmp_path / "out")) < before


def test_fewer_inputs_leave_nothing_behind(pack, chats, sample, tmp_path):
    assert pack(chats, sample / "journals.jsonl", "--epochs", 3).code == 0
    assert pack(chats, "--gpus", 4).code == 0
    assert pack(chats, "--gpus", 4, output=tmp_path / "fresh").code == 0
    assert current_tree(tmp_path / "out") == tree(tmp_path / "fresh")
    assert pack(chats, "--gpus", 4, "--keep", 1).code == 0
    assert tree(tmp_path / "out") == tree(tmp_path / "fresh")


def damages(data, generator):
    flipped = bytearray(data)
    flipped[generator.randrange(len(data))] ^= 1 << generator.randrange(8)
    return {
        "cut": data[: len(data) // 2],
        "empty": b"",
        "noise": generator.randbytes(len(data)),
        "flip": bytes(flipped),
        "gone": None,
    }


@pytest.mark.parametrize("name", ["plan.arrow", "hbpack.json", "tokens/tokens.json", "tokens/part-*.arrow",
                                  "tokens/rejected-*.jsonl", "rejected.jsonl", "VERSION/hbpack.json",
                                  "VERSION/plan.arrow", "VERSION/rejected.jsonl", "VERSION/store.json",
                                  "VERSION/shards/g0-1024-sp1/shard-00000.arrow",
                                  "VERSION/ranks/epoch-000/rank-00003.arrow"])  # fmt: skip
def test_a_damaged_file_is_made_again(hbpack, pack, chats, tmp_path, name):
    """Every command ends in words; packing again repairs what can be told to be damaged."""
    folder = tmp_path / "in"
    folder.mkdir()
    shutil.copy(chats, folder)
    with (folder / "chats.jsonl").open("a") as file:
        file.write("broken\n")
    out = tmp_path / "out"
    assert pack(folder).code == 0
    before = tree(out)
    name = next(out.glob(name.replace("VERSION", home(out).name))).relative_to(out).as_posix()
    generator = random.Random(0)
    for how, data in damages(before[name], generator).items():
        if data is None:
            (out / name).unlink()
        else:
            (out / name).write_bytes(data)
        for arguments in (["stats", out], ["plan", out, *GROUPS], ["write", out, "--workers", 1]):
            done = hbpack(*arguments)
            assert done.code in (0, 1, 2)
            assert done.code == 0 or done.stderr.splitlines()[-1].startswith("error: ")
        assert pack(folder).code == 0, how
        # What keeps its size may hide a damage only where no checksum is: in manifests and rejected records.
        has_checksum = any(part in name for part in ("plan.arrow", "tokens/part", "/shards/"))
        if how in ("cut", "empty", "gone") or has_checksum or name.endswith("rejected.jsonl"):
            assert tree(out) == before, how
        for path, content in before.items():
            (out / path).write_bytes(content)


def test_without_the_tokens(hbpack, pack, chats, tmp_path):
    out = tmp_path / "out"
    assert pack(chats, "--no-keep-tokens").code == 0
    assert not (out / "tokens").exists()
    assert hbpack("stats", out).code == 0
    assert hbpack("write", out).stderr == "the shards are up to date\n"
    done = hbpack("stats", out, *GROUPS)
    assert done.stderr == f"error: '{out}' is planned and keeps no tokens; leave out --groups and --gpus\n"
    done = hbpack("plan", out, *GROUPS)
    assert done.stderr == f"error: '{out}/tokens' holds no token store (no tokens.json); run hbpack tokenize\n"
    remove_written(out)
    done = hbpack("write", out, "--workers", 1)
    message = f"the plan's token store '{out}/tokens' is gone; run hbpack tokenize and hbpack plan again"
    assert done == (2, "", f"error: {message}\n")
    assert UP_TO_DATE[0] in pack(chats).stderr.splitlines()
    assert (out / "tokens").exists()


def test_a_plan_elsewhere_and_moved_folders(hbpack, pack, chats, tmp_path):
    home = tmp_path / "home"
    assert pack(chats, output=home / "out").code == 0
    assert hbpack("plan", home / "out", "--groups", "2k:2", "--gpus", 4, "--output", home / "other").code == 0
    assert hbpack("write", home / "other", "--workers", 1, "--no-keep-tokens").code == 0
    assert (home / "out" / "tokens").exists()  # They are not the other plan's own.
    before = tree(home / "other")
    home.rename(tmp_path / "moved")
    assert hbpack("stats", tmp_path / "moved" / "other").code == 0
    remove_written(tmp_path / "moved" / "other")
    assert hbpack("write", tmp_path / "moved" / "other", "--workers", 1).code == 0
    assert tree(tmp_path / "moved" / "other") == before
    (tmp_path / "moved" / "out").rename(tmp_path / "moved" / "away")
    assert hbpack("write", tmp_path / "moved" / "other").stderr == "the shards are up to date\n"
    # The same tokens at another place: the plan learns where they are.
    done = hbpack(
        "plan", tmp_path / "moved" / "away", "--groups", "2k:2", "--gpus", 4, "--output", tmp_path / "moved" / "other"
    )
    assert "planned" in done.stderr
    assert hbpack("write", tmp_path / "moved" / "other", "--workers", 1).code == 0


def test_paths_may_be_relative_and_hold_anything(pack, chats, tmp_path, monkeypatch):
    folder = tmp_path / "a b ü"
    folder.mkdir()
    shutil.copy(chats, folder / "x y.jsonl")
    monkeypatch.chdir(folder)
    assert pack("x y.jsonl", output="o u t").code == 0
    assert pack(folder / "x y.jsonl", output=tmp_path / "absolute").code == 0
    relative, absolute = read_packs(folder / "o u t"), read_packs(tmp_path / "absolute")
    assert [pack["input_ids"].tolist() for pack in relative] == [pack["input_ids"].tolist() for pack in absolute]


def test_many_small_files(pack, sample, tmp_path):
    folder = tmp_path / "many"
    folder.mkdir()
    with (sample / "chats.jsonl").open() as file:
        for i in range(100):
            (folder / f"{i:03}.jsonl").write_text(next(file))
    assert pack(folder, "--groups", "256:1,1k:2,8k:8:3", "--epochs", 3, "--curriculum-steps", 2,
                "--global-tokens", "8k").code == 0  # fmt: skip
    manifest = json.loads((tmp_path / "out" / "hbpack.json").read_text())
    num_samples = [group["num_samples"] for group in manifest["groups"]]
    assert num_samples[0] > 0
    assert sum(num_samples) == 100
    assert len(manifest["epochs"]) == 3


@pytest.mark.parametrize("left", [0, 3000, 12_000, 25_000])
def test_a_full_disk(pack, chats, tmp_path, monkeypatch, left):
    assert pack(chats, output=tmp_path / "whole").code == 0
    total = 0

    def write(self, data):
        nonlocal total
        total += memoryview(data).nbytes
        if total > left:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(self, data)

    real = HashingFile.write
    monkeypatch.setattr(HashingFile, "write", write)
    done = pack(chats)
    assert done.code == 1
    message = done.stderr.splitlines()[-1]
    assert message.startswith(f"error: No space left on device ({tmp_path}/out/")
    assert message.endswith("); make room and run the same command again to go on")
    whole = tree(tmp_path / "whole")
    half = {name: data for name, data in tree(tmp_path / "out").items() if "/." not in name}
    assert half.items() <= whole.items()
    monkeypatch.setattr(HashingFile, "write", real)
    assert pack(chats).code == 0
    assert tree(tmp_path / "out") == whole


@pytest.fixture(scope="module")
def big(sample, tmp_path_factory):
    """Enough for several parts."""
    path = tmp_path_factory.mktemp("big") / "big.jsonl"
    path.write_bytes((sample / "chats.jsonl").read_bytes() * 8)
    return path


@pytest.fixture(scope="module")
def whole(big, tokenizer, tmp_path_factory):
    """What an undisturbed run makes of it."""
    words = ["pack", big, "--tokenizer", tokenizer, *GROUPS, "--workers", 1, "--output"]
    return tree(run_process(list(map(str, words)), tmp_path_factory.mktemp("whole") / "out"))


def start(big, tokenizer, output, **options):
    command = [*HBPACK, "pack", big, "--tokenizer", tokenizer, *GROUPS, "--output", output, "--workers", 2]
    return subprocess.Popen(
        list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )  # fmt: skip


def wait_for(condition, seconds=30.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it takes too long"
        time.sleep(0.02)


def gone(processes):
    return all(not process.is_running() or process.status() == psutil.STATUS_ZOMBIE for process in processes)


@pytest.mark.parametrize(
    ("moment", "number", "code", "word"),
    [
        ("workers start", signal.SIGTERM, 143, "terminated"),
        ("parts come", signal.SIGINT, 130, "interrupted"),
        pytest.param("workers start", signal.SIGINT, 130, "interrupted", marks=pytest.mark.slow),
        pytest.param("parts come", signal.SIGTERM, 143, "terminated", marks=pytest.mark.slow),
    ],
)
@pytest.mark.usefixtures("interruptible")
def test_a_signal_ends_all_at_once_and_the_next_run_goes_on(
    pack, big, whole, tokenizer, tmp_path, moment, number, code, word
):
    out = tmp_path / "out"
    process = start(big, tokenizer, out)
    parent = psutil.Process(process.pid)
    if moment == "parts come":
        wait_for(lambda: list(out.glob("tokens/part-*.arrow")) or process.poll() is not None)
    else:
        wait_for(lambda: parent.children(recursive=True))
    children = parent.children(recursive=True)
    begin = time.monotonic()
    os.killpg(process.pid, number)
    stdout, stderr = process.communicate(timeout=20)
    assert process.returncode == code
    assert stderr.splitlines()[-1] == f"error: {word}; run the same command again to go on"
    assert "Traceback" not in stderr
    assert stdout == ""
    assert time.monotonic() - begin < 10
    wait_for(lambda: gone(children))
    assert not list(out.rglob("*.tmp"))
    assert pack(big).code == 0
    assert tree(out) == whole


def test_workers_end_with_a_run_that_is_killed(big, tokenizer, tmp_path):
    process = start(big, tokenizer, tmp_path / "out")
    wait_for(lambda: list((tmp_path / "out").glob("tokens/part-*.arrow")) or process.poll() is not None)
    children = psutil.Process(process.pid).children(recursive=True)
    assert children
    process.kill()
    process.communicate(timeout=20)
    wait_for(lambda: gone(children))


def test_pipes_that_close_early(pack, hbpack, chats, tmp_path):
    assert pack(chats).code == 0
    for arguments in (["stats", tmp_path / "out"], ["stats", tmp_path / "out", "--json"], ["--help"]):
        reading, writing = os.pipe()
        os.close(reading)
        done = subprocess.run([*HBPACK, *map(str, arguments)], stdout=writing, stderr=subprocess.PIPE, text=True)
        os.close(writing)
        assert (done.returncode, done.stderr) == (1, "")


def on_a_terminal(command, **environment):
    """What a terminal gets of stderr."""
    pty = pytest.importorskip("pty")
    leader, follower = pty.openpty()
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=follower, env={**os.environ, "TERM": "xterm", **environment}
    )
    os.close(follower)
    seen = b""
    while True:
        try:
            block = os.read(leader, 65536)
        except OSError:  # Linux says so where others say nothing.
            break
        if not block:
            break
        seen += block
    os.close(leader)
    process.wait(timeout=30)
    return seen.decode()


def test_a_terminal_sees_progress_and_a_file_does_not(pack, sample, tokenizer, tmp_path):
    command = [*HBPACK, "pack", sample / "chats.jsonl", "--tokenizer", tokenizer, *GROUPS, "--workers", 1, "--output"]
    seen = on_a_terminal(list(map(str, [*command, tmp_path / "seen"])))
    assert "Tokenizing" in seen
    assert "\x1b[" in seen
    quiet = pack(sample / "chats.jsonl", output=tmp_path / "quiet")
    assert [line.split()[0] for line in quiet.stderr.splitlines()] == [
        *("tokenizer", "template", "loss", "EOS", "tokenized", "every", "planned", "wrote")
    ]
    assert "\x1b" not in quiet.stdout + quiet.stderr
    assert tree(tmp_path / "seen") == tree(tmp_path / "quiet")


def test_colors_only_where_they_are_wanted():
    command = [*HBPACK, "stats", "nowhere"]
    assert "\x1b[31m" in on_a_terminal(command, NO_COLOR="")
    assert "\x1b" not in on_a_terminal(command, NO_COLOR="1")


def test_workers_that_cannot_start_are_an_error_in_words(pack, chats, monkeypatch):
    from multiprocessing.process import BaseProcess

    def start(*_):
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))

    monkeypatch.setattr(BaseProcess, "start", start)
    done = pack(chats, "--workers", 2)
    message = "worker processes cannot be started ([Errno 32] Broken pipe); try --workers 1"
    assert (done.code, done.stderr) == (1, f"error: {message}\n")
