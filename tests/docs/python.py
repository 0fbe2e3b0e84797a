"""Runs the Python of a page, block by block, in one namespace of a new process, or of several ranks.

As a program: one of these processes. It reads a block a line, as JSON, and answers each with a line.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from tests.docs.blocks import ROOT, Block

WORLD_SIZE = 2
"""GPUs for which `OUT` is planned, where a page does not plan it itself."""
TIME_LIMIT = 120
"""Seconds of a block; ranks that wait for each other would do so for half an hour."""


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
def python(num_ranks: int, folder: Path) -> Iterator[Python]:
    """Start the processes in the current folder; several form a group, as torchrun starts them.

    Args:
        folder: for what they print.
    """
    shared = {"PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1"}
    if num_ranks > 1:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = str(free.getsockname()[1])
        shared |= {"WORLD_SIZE": str(num_ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        shared |= {"GLOO_SOCKET_IFNAME": "lo"}
    logs = [folder / f"rank-{rank}" for rank in range(num_ranks)]
    with ExitStack() as stack:
        processes = [
            stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-m", "tests.docs.python", log],
                    env=os.environ | shared | ({"RANK": str(rank), "LOCAL_RANK": str(rank)} if num_ranks > 1 else {}),
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


def main(log: str) -> None:
    """Run the blocks of standard input; print to the log."""
    answers = os.fdopen(os.dup(1), "w")
    for number in (1, 2):
        os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
    is_alone = "WORLD_SIZE" not in os.environ
    names: dict[str, Any] = {"__name__": "__main__", "rank": int(os.environ.get("RANK", 0)), "world_size": WORLD_SIZE}
    for line in sys.stdin:
        signal.alarm(TIME_LIMIT)
        block = json.loads(line)
        if is_alone:
            names["world_size"] = WORLD_SIZE if "s3://" in block["source"] else planned_gpus()
        add_script_names(names, block["source"])
        run_block(block["page"], block["line"], block["source"], names)
        signal.alarm(0)
        answers.write("done\n")
        answers.flush()


def run_block(page: str, line: int, source: str, names: dict[str, Any]) -> None:
    """Run a block in a namespace; tracebacks have the lines of the page."""
    code = compile("\n" * (line - 1) + source, ROOT / page, "exec")
    if "flash_attn" in source:
        sys.modules["flash_attn"] = flash_attn()
    try:
        exec(code, names)
    finally:
        sys.modules.pop("flash_attn", None)  # transformers would look for more of it.


def planned_gpus() -> int:
    """The GPUs for which the page has planned `OUT` last. One process reads the batches of rank 0."""
    manifest = Path("OUT", "hbpack.json")
    if not manifest.is_file():
        return WORLD_SIZE
    gpus: int = json.loads(manifest.read_text(encoding="utf-8"))["config"]["plan"]["gpus"]
    return gpus


def add_script_names(names: dict[str, Any], source: str) -> None:
    """Add what every training script has, if a block uses it: pages do not say where it comes from."""
    if "model" not in names and re.search(r"\b(model|tokenizer)\b", source):
        import torch
        from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

        torch.manual_seed(0)
        shape = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
        names["model"] = LlamaForCausalLM(LlamaConfig(vocab_size=1024, **shape))
        names["optimizer"] = torch.optim.AdamW(names["model"].parameters(), lr=1e-3)
        names["tokenizer"] = AutoTokenizer.from_pretrained(ROOT / "examples" / "sample" / "tokenizer")


def flash_attn() -> ModuleType:
    """A stand-in for the package, whose kernels need a GPU: its function in plain torch."""
    from packer_cli.loader.parallel import packed_attention

    def flash_attn_varlen_func(
        q: Any, k: Any, v: Any, *, cu_seqlens_q: Any, cu_seqlens_k: Any, max_seqlen_q: int, max_seqlen_k: int,
        causal: bool,
    ) -> Any:  # fmt: skip
        assert causal
        assert max_seqlen_q >= int(cu_seqlens_q.diff().max())
        assert max_seqlen_k >= int(cu_seqlens_k.diff().max())
        return packed_attention(q, k, v, cu_seqlens_q, cu_seqlens_k=cu_seqlens_k)

    module = ModuleType("flash_attn")
    module.flash_attn_varlen_func = flash_attn_varlen_func  # type: ignore[attr-defined]
    return module


if __name__ == "__main__":
    main(sys.argv[1])
