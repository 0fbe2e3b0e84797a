"""Tasks on Ray: the outcomes and the bytes of the local engine, whatever is killed on the way."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from multiprocessing import forkserver
from pathlib import Path

import psutil
import pytest

from packer_cli.cli.main import main
from packer_cli.engine.processes import Died, end_servers, outcome_of, process_context, to_bytes
from packer_cli.engine.ray import RayEngine, _outcome, check_address, relay, start, stop
from packer_cli.errors import ConfigError, InputError, RunError
from packer_cli.version import __version__
from tests.cli_runner import HBPACK, run
from tests.engine.ray_workers import ray_workers
from tests.engine.test_local import SEGV, task
from tests.reference import tree


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """A Ray with two CPUs, in which this process is: starting one takes some seconds."""
    assert start(None, 2)
    import ray

    yield ray.get_runtime_context().gcs_address
    stop()


def killing(path: Path) -> int:
    """Kill the worker, until a file says that this was done; that of an odd number kills Ray's, too."""
    folder, number = path.parent, int(path.name)
    if number == 9 or not path.exists():
        path.touch()
        if number % 2:
            os.kill(os.getppid() if number == 1 else os.getpid(), signal.SIGKILL)
        os.kill(psutil.Process().pid, signal.SIGKILL)
    return number + len(list(folder.iterdir()))


def test_outcomes_are_those_of_the_local_engine(address):
    tasks = [1, 2, SEGV, 3, 4]
    with RayEngine(None, None) as engine:
        assert dict(engine.run(task, tasks)) == {0: 1, 1: 4, 2: Died(SEGV), 3: 9, 4: 16}
        assert sorted(engine.run_writing(task, [5, 6])) == [(0, 25), (1, 36)]
        with pytest.raises(RunError) as crash:
            list(engine.run_writing(task, [SEGV]))
        assert str(crash.value) == "a worker process crashed (SIGSEGV); run the same command again to go on"
        for number, error in ((13, InputError), (14, UnicodeDecodeError)):
            with pytest.raises(error) as caught:
                list(engine.run(task, [1, number, 2]))
            assert "in task" in caught.value.__notes__[0]


@pytest.mark.slow
def test_a_task_whose_worker_is_killed_runs_again(address, tmp_path):
    with RayEngine(None, 1) as engine:
        assert sorted(engine.run(killing, [tmp_path / "0", tmp_path / "1"])) == [(0, 1), (1, 3)]


def test_but_not_forever(address, tmp_path, monkeypatch):
    monkeypatch.setattr("packer_cli.engine.ray.MOST_TRIES", 2)  # A worker takes seconds to start.
    with pytest.raises(RunError) as caught, RayEngine(None, 2) as engine:
        list(engine.run(killing, [tmp_path / "9"]))
    assert str(caught.value) == (
        "Ray lost the worker of a task 2 times, the last time: its process was killed, perhaps for want of memory; "
        "try fewer --workers; make sure that its nodes have enough memory and stay up, and run the "
        "same command again to go on"
    )


def test_a_ray_that_does_not_start(address, monkeypatch):
    import ray

    def init(*_, **__):
        raise RuntimeError("There is no room. Read the logs.")

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", init)
    with pytest.raises(RunError) as caught:
        start(None, 1)
    assert str(caught.value) == "Ray cannot be started (There is no room); try --engine local"


def test_a_server_that_is_ending_is_replaced(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("packer_cli.engine.ray._worker", None)
    arguments = to_bytes(task, 3), __version__, str(tmp_path), ("packer_cli.errors",)
    process_context(arguments[3])
    with socket.socket(socket.AF_UNIX) as gone:
        gone.bind("gone")
    forkserver._forkserver._forkserver_address = "gone"
    assert str(relay(*arguments)) == "[Errno 111] Connection refused"
    assert outcome_of(relay(*arguments)) == 9
    end_servers()


def test_nodes_that_do_not_fit(address, tmp_path):
    import ray

    for cause, message in (
        (
            ImportError("No module named 'packer_cli'"),
            (
                "a node of Ray cannot run hbpack (No module named 'packer_cli'); "
                f"install hbpack {__version__} on every node"
            ),
        ),
        (RunError("a node of Ray has hbpack 9"), "a node of Ray has hbpack 9"),
    ):
        with pytest.raises(RunError) as caught:
            _outcome(ray, ray.put(ray.exceptions.RayTaskError("relay", "", cause)))
        assert str(caught.value) == message
    with pytest.raises(RunError) as caught:
        relay(b"", "9", str(tmp_path), ())
    assert str(caught.value) == (
        f"a node of Ray has hbpack {__version__}, and this is 9; install the same on every node"
    )


def test_without_ray(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError) as caught, RayEngine(None, None):
        pass
    assert str(caught.value) == "--engine ray needs Ray, which is not installed; pip install 'hbpack[ray]'"


def test_addresses_that_nobody_has():
    for wrong in ("6379", "head:port", "ray://head:10001"):
        with pytest.raises(ConfigError) as caught:
            check_address(wrong)
        assert str(caught.value) == (
            f"--engine ray:{wrong}: not the address of a Ray cluster; give HOST:PORT of its head (usually port 6379), "
            "or auto for the one that this machine belongs to"
        )
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        port = bound.getsockname()[1]
    done = subprocess.run(
        [*HBPACK, "tokenize", "x.jsonl", "--tokenizer", "t", "-o", "o", "--engine", f"ray:127.0.0.1:{port}"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert done.stderr == (
        f"error: --engine ray:127.0.0.1:{port}: Ray does not answer ([Errno 111] Connection refused); check the "
        "address and that the cluster is up, or leave it out to use this machine\n"
    )


@pytest.fixture(scope="module")
def corpus(repo, tmp_path_factory) -> Path:
    """Enough for several parts, of which some have loss weights."""
    folder = tmp_path_factory.mktemp("corpus")
    lines = (repo / "examples" / "sample" / "chats.jsonl").read_bytes().splitlines(keepends=True)
    chats = b"".join(lines[:300])
    for number in range(4):
        weighted = chats.replace(b'"messages"', b'"weight": 0.5, "messages"') if number % 2 else chats
        (folder / f"{number}.jsonl").write_bytes(chats + weighted)
    return folder


@pytest.mark.slow
def test_a_killed_worker_of_ray_changes_no_byte(address, corpus, repo, tmp_path):
    words = ["pack", corpus, "--tokenizer", repo / "examples" / "sample" / "tokenizer", "--groups", "1k:1,8k:4"]
    words += ["--gpus", "8", "--shard-size", "256KiB", "--output"]
    command = [*HBPACK, *map(str, words)]
    process = subprocess.Popen(
        [*command, str(tmp_path / "ray"), "--engine", f"ray:{address}"], stderr=subprocess.PIPE, text=True
    )
    killed = 0
    while process.poll() is None and not killed:
        for worker in ray_workers():
            worker.kill()
            killed += 1
            break
    _, stderr = process.communicate(timeout=120)
    assert killed
    assert process.returncode == 0
    first, *others = stderr.splitlines()
    assert first == f"running on Ray at {address}: 1 node, 2 CPUs"
    local = run(main, *words, tmp_path / "local", "--workers", 1)
    assert local.code == 0, local.stderr
    assert [line.split("(")[0] for line in others] == [line.split("(")[0] for line in local.stderr.splitlines()]
    assert tree(tmp_path / "ray") == tree(tmp_path / "local")
    counts = json.loads((tmp_path / "ray" / "hbpack.json").read_bytes())["counts"]
    assert counts["loss_tokens"] / 2 < counts["loss_weight"] < counts["loss_tokens"]
