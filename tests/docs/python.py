"""Runs the Python of a page, block by block, in one namespace of a new process, or of several ranks."""

from __future__ import annotations

import json
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.docs.blocks import Block
from tests.docs.shell import environment

NAMESPACE = Path(__file__).with_name("namespace.py")
"""What one of the processes runs."""


class Python:
    """The processes of a page."""

    def __init__(self, processes: list[subprocess.Popen[str]], logs: list[Path]) -> None:
        self.processes, self.logs = processes, logs

    def run(self, block: Block) -> None:
        """Run a block in all of them."""
        line = json.dumps({"page": block.page, "line": block.line, "source": block.source}) + "\n"
        for process in self.processes:
            assert process.stdin is not None
            process.stdin.write(line)
            process.stdin.flush()
        answers = [process.stdout.readline() for process in self.processes if process.stdout is not None]
        failed = [log.read_text() for answer, log in zip(answers, self.logs, strict=True) if not answer]
        assert not failed, f"{block}\n" + "\n".join(failed)


@contextmanager
def python(num_ranks: int, folder: Path, programs: Path) -> Iterator[Python]:
    """Start the processes in the current folder; several form a group, as torchrun starts them.

    Args:
        folder: for what they print.
        programs: the folder of the Python to run.
    """
    shared = environment(programs)
    if num_ranks > 1:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = str(free.getsockname()[1])
        shared |= {"WORLD_SIZE": str(num_ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    logs = [folder / f"rank-{rank}" for rank in range(num_ranks)]
    with ExitStack() as stack:
        processes = [
            stack.enter_context(
                subprocess.Popen(
                    [programs / "python", "-P", NAMESPACE, log],
                    env=shared | ({"RANK": str(rank), "LOCAL_RANK": str(rank)} if num_ranks > 1 else {}),
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
            for rank, log in enumerate(logs)
        ]
        try:
            yield Python(processes, logs)
        finally:
            for process in processes:
                process.kill()
