"""One process of a page's Python. It reads a block a line, as JSON, and answers each with a line.

It imports nothing of the tree, since hbpack is what a reader has installed.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).parents[2]
WORLD_SIZE = 2
"""GPUs for which `OUT` is planned, where a page does not plan it itself."""
TIME_LIMIT = 120
"""Seconds of a block; ranks that wait for each other would do so for half an hour."""


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
