"""Processes that train together, forked from one that has imported torch and transformers.

In each of them, the imports would take longer than the rest.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

from packer_cli.cli.main import main
from packer_cli.engine.processes import process_context
from tests.cli_runner import run

PRELOADED = ("tests.loader.llama", "torch.distributed.device_mesh", "torch.distributed.fsdp", "packer_cli.loader")

AT_EXIT = Path(__file__).with_name("at_exit")
"""A folder for the PYTHONPATH of torchrun; its file says why."""


def torchrun_environment(*python_path: str) -> dict[str, str]:
    """Return this process's environment for a program that may call torchrun, on CPUs, with another PYTHONPATH."""
    folders = os.pathsep.join([str(AT_EXIT), *python_path])
    return os.environ | {"CUDA_VISIBLE_DEVICES": "", "GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": folders}


def run_ranks(function: Callable[..., None], arguments: tuple[Any, ...], num_ranks: int) -> None:
    """Call `function(rank, *arguments)` in each process; an assertion that fails there fails the test."""
    import torch.multiprocessing as mp

    process_context(PRELOADED)
    mp.start_processes(function, arguments, num_ranks, start_method="forkserver")


def run_command(*arguments: object, num_ranks: int) -> None:
    """Run `hbpack ARGUMENTS` as torchrun does; it must succeed, and only rank 0 may print."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    run_ranks(_command, (num_ranks, port, list(map(str, arguments))), num_ranks)


def _command(rank: int, num_ranks: int, port: int, arguments: list[str]) -> None:
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(num_ranks)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo"}
    done = run(main, *arguments)
    assert done.code == 0, done.stderr
    assert rank == 0 or done.stdout == ""
