"""Starts the example scripts as torchrun does, in processes forked from one that imported the trainers once.

Importing them takes longer than all of these tests. Run as a program it is that one process: a job a line on standard
input, the exit codes of its ranks on standard output.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any, NoReturn

ROOT = Path(__file__).parents[2]
TIME_LIMIT = 240
"""Seconds."""

PRELOADED = (
    "torch",
    "torch.distributed.checkpoint",
    "torch.distributed.fsdp",
    "transformers.models.llama.modeling_llama",
    "transformers.trainer",
    "datasets",
    "accelerate",
    "trl.trainer.sft_trainer",
    "trl.trainer.dpo_trainer",
    "trl.trainer.reward_trainer",
    "lightning",
    "s3fs",  # Lightning loads it with its first checkpoint.
    "packer_cli.loader",
    "tests.examples.reference",
)


class Launcher:
    """Runs scripts; one of them at a time."""

    def __init__(self, python: str | Path = sys.executable, python_path: str = str(ROOT)) -> None:
        environment = os.environ | {"CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1", "PYTHONPATH": python_path}
        command = [python, "-P", __file__]
        self.process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def run(self, script: str | Path, *arguments: object, num_ranks: int, logs: Path) -> tuple[list[int], str]:
        """Exit codes of the ranks in the current folder, and what they wrote, rank by rank."""
        logs.mkdir(parents=True, exist_ok=True)
        job = {
            "folder": os.getcwd(),
            "script": str(script),
            "arguments": list(map(str, arguments)),
            "num_ranks": num_ranks,
            "logs": str(logs),
        }
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(job) + "\n")
        self.process.stdin.flush()
        codes = json.loads(self.process.stdout.readline())
        return codes, "".join((logs / f"rank-{rank}").read_text() for rank in range(num_ranks))

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(timeout=30)


def serve() -> None:
    for name in PRELOADED:
        try:
            importlib.import_module(name)
        except ImportError:
            continue  # Its script says so, or its test is skipped.
    gc.freeze()  # The forked ones do not look through all that again.
    for line in sys.stdin:
        job = json.loads(line)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        for rank in range(job["num_ranks"]):  # A rank that is killed at once has a log too.
            Path(job["logs"], f"rank-{rank}").write_text("")
        processes = [start(job, rank, port) for rank in range(job["num_ranks"])]
        codes = {}
        while len(codes) < len(processes):
            process, status = os.wait()
            codes[process] = os.waitstatus_to_exitcode(status)
            if codes[process]:  # The others would wait for it.
                for other in set(processes) - set(codes):
                    os.kill(other, signal.SIGKILL)
        print(json.dumps([codes[process] for process in processes]), flush=True)


def start(job: dict[str, Any], rank: int, port: int) -> int:
    process = os.fork()
    return process or become(job, rank, port)


def become(job: dict[str, Any], rank: int, port: int) -> NoReturn:
    code = 1
    signal.alarm(TIME_LIMIT)  # Ranks that wait for each other would do so for half an hour.
    try:
        log = os.open(f"{job['logs']}/rank-{rank}", os.O_WRONLY)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        if job["num_ranks"] > 1:
            importlib.import_module("torch").set_num_threads(1)  # As torchrun does.
            num_ranks = str(job["num_ranks"])
            os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "GROUP_RANK": "0", "WORLD_SIZE": num_ranks}
            os.environ |= {"LOCAL_WORLD_SIZE": num_ranks, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
            os.environ |= {"TORCHELASTIC_RUN_ID": "none", "GLOO_SOCKET_IFNAME": "lo"}
        os.chdir(job["folder"])
        sys.argv = [job["script"], *job["arguments"]]
        sys.path.insert(0, os.path.dirname(os.path.abspath(job["script"])))  # As Python does for a script.
        runpy.run_path(job["script"], run_name="__main__")
        code = 0
    except SystemExit as stop:
        if isinstance(stop.code, str):
            print(stop.code, file=sys.stderr)
        code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    serve()
