"""Peak memory and time of the output layer and the loss of a row, beside transformers and TRL.

Run as a program with a contender and a share of tokens with a loss, it is one process that makes one forward and
backward pass, and prints what that took.
"""

from __future__ import annotations

import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.benchmark.measure import ROOT, BenchmarkError
from tests.benchmark.report import mebibytes, table, times, versions

TOKENS, SAMPLE, VOCABULARY, HIDDEN = 16_384, 1024, 32_000, 256
SHARES = (1.0, 0.25)
CONTENDERS = {
    "row_loss": "`run_packed_rows`",
    "fused": "TRL's fused output layer",
    "whole": "transformers: whole logits",
}


def run(work: Path, runs: int) -> str:
    """Measure, and return the text of the section."""
    found: dict[tuple[str, float], list[dict[str, float]]] = {}
    for number in range(runs):
        print(f"output-layer: round {number + 1} of {runs}", file=sys.stderr)
        for share in SHARES:
            for name in CONTENDERS:
                found.setdefault((name, share), []).append(_measure(name, share))
    rows, lines = [], []
    for share in SHARES:
        ours = found["row_loss", share]
        for name, title in CONTENDERS.items():
            results = found[name, share]
            assert abs(results[0]["loss"] / ours[0]["loss"] - 1) < 1e-4, "unlike losses"
            peak, seconds = (statistics.median(result[key] for result in results) for key in ("peak", "seconds"))
            ratios = [result["seconds"] / our["seconds"] for result, our in zip(results, ours, strict=True)]
            rows.append(
                [
                    f"{title}, loss on {share:.0%}",
                    mebibytes(peak),
                    f"{seconds:.1f}",
                    times(statistics.median(ratios), 1),
                ]
            )
        least, most = (statistics.median(r["peak"] for r in found[name, share]) for name in ("row_loss", "whole"))
        lines.append(f"- Loss on {share:.0%} of the tokens: {times(most, least)} less memory than with whole logits.")
    text = (
        f"One forward and backward pass of a Llama with one layer of {HIDDEN}, {VOCABULARY:,} ids, and float32, over "
        f"a row of {TOKENS:,} tokens, in samples of {SAMPLE:,}; all give the same loss. *Peak* is what the process's "
        "largest resident set grew by, with the gradients of all weights; each pass has a process of its own. Whole "
        f"logits are {mebibytes(TOKENS * VOCABULARY * 4)} MiB. Seconds are CPU time of one thread; medians of {runs} "
        "rounds, and of the ratio to `run_packed_rows` within a round. TRL's kernel is one of Triton, for which its "
        "plain torch code stands in on CPUs, over all tokens; `SFTTrainer` has it compute entropies and accuracies "
        f"too, here it computes the loss alone. {versions(('torch', 'transformers', 'trl'))}."
    )
    return f"{text}\n\n{table(['', 'peak, MiB', 'seconds', 'to `run_packed_rows`'], rows)}\n\n" + "\n".join(lines)


def _measure(name: str, share: float) -> dict[str, float]:
    command = [sys.executable, "-m", "tests.benchmark.output_layer", name, str(share)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        raise BenchmarkError(f"{name}: {done.stderr[-1000:]}")
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return result


def main(name: str, share: float) -> None:
    """One pass."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=HIDDEN, intermediate_size=HIDDEN, num_hidden_layers=1,
        num_attention_heads=8, attn_implementation="sdpa",
    )  # fmt: skip
    torch.set_num_threads(1)
    model = LlamaForCausalLM(config).train()
    ids = torch.randint(VOCABULARY, (1, TOKENS))
    positions = torch.arange(TOKENS)[None] % SAMPLE
    labels = torch.where((positions > 0) & (torch.rand(1, TOKENS) < share), ids, -100)
    borders = torch.arange(0, TOKENS + 1, SAMPLE, dtype=torch.int32)
    batch = {"input_ids": ids, "position_ids": positions, "labels": labels, "cu_seq_lens_q": borders}
    step = STEPS[name](model, batch | {"max_length_q": SAMPLE})
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    before, start = _resident(), time.process_time()
    loss = step()
    loss.backward()
    seconds = time.process_time() - start
    num_tokens = int((labels >= 0).sum())
    print(json.dumps({"peak": _resident() - before, "seconds": seconds, "loss": loss.item() / num_tokens}))


def _resident() -> int:
    """The greatest so far, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


Step = Callable[[], Any]


def _row_loss(model: Any, batch: dict[str, Any]) -> Step:
    import torch

    from packer_cli.loader.adapters.causal_lm import run_packed_rows
    from packer_cli.loader.adapters.packed_row import PackedRow

    run_packed_rows(model)
    row = PackedRow(batch, None, factor=1.0, device=torch.device("cpu"))
    return lambda: row.run(model)


def _without_mask(model: Any, batch: dict[str, Any]) -> dict[str, Any]:
    """Samples as rows of a batch, since the mask of a packed row would have T x T elements here."""
    shape = (TOKENS // SAMPLE, SAMPLE)
    return {name: batch[name].view(shape) for name in ("input_ids", "position_ids", "labels")}


def _fused(model: Any, batch: dict[str, Any]) -> Step:
    from trl.trainer.utils import add_fused_lm_head

    add_fused_lm_head(model)
    return lambda: model(**_without_mask(model, batch), fused_lm_head=True, num_items_in_batch=1).loss


def _whole(model: Any, batch: dict[str, Any]) -> Step:
    return lambda: model(**_without_mask(model, batch), num_items_in_batch=1).loss


STEPS: dict[str, Callable[[Any, dict[str, Any]], Step]] = {"row_loss": _row_loss, "fused": _fused, "whole": _whole}

if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
