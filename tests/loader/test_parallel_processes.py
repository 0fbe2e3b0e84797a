"""Four processes train as one does: Ulysses, ring and per-document context parallelism, degrees mixed in one run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import torch

from tests.loader import sp_worker
from tests.loader.llama import gradients, sample_losses, tiny_llama
from tests.ranks import run_ranks


def one_process(packed: Any) -> dict[str, Any]:
    """Losses of each pack's tokens, and each step's loss, sample mean and gradients, from the samples one by one."""
    model = tiny_llama("sdpa")
    found: dict[str, Any] = {"losses": {}, "totals": {}, "gradients": {}}
    packs: dict[int, list[Any]] = {}
    for step, slots in packed.epochs[0]:
        packs.setdefault(step, []).extend(pack for pack, _, _ in slots if pack is not None)
    for step, mine in packs.items():
        losses = {pack.id: sample_losses(model, pack.samples) for pack in mine}
        each = [(x.sum(), sum(s.mask)) for pack in mine for x, s in zip(losses[pack.id], pack.samples, strict=True)]
        num_loss_tokens = sum(pack.num_loss_tokens for pack in mine)
        mean = sum(total for total, _ in each) / max(1, num_loss_tokens)
        found["totals"][step] = torch.tensor([mean, sum(total / max(1, n) for total, n in each) / max(1, len(each))])
        found["totals"][step] = found["totals"][step].double()
        found["gradients"][step] = {n: g / max(1, num_loss_tokens) for n, g in gradients(model).items()}
        found["losses"] |= {i: torch.cat(x) for i, x in losses.items()}
    return found


def plan_shardings(packed: Any) -> None:
    """Rewrite `cp_sharding`: 1 (per document) for every other pack."""
    for file in packed.path.glob("shards/*/*.arrow"):
        table = pa.ipc.open_file(file.read_bytes()).read_all()
        column = pa.array([i % 2 for i in range(table.num_rows)], pa.int8())
        table = table.set_column(
            table.schema.get_field_index("cp_sharding"), table.schema.field("cp_sharding"), column
        )
        packed.rewrite(str(file.relative_to(packed.path)), table)


def test_sequence_parallel_training_equals_one_process(make_set: Any, tmp_path: Path) -> None:
    packed = make_set(tmp_path / "set", [(24, 1, 6), (48, 2, 4), (96, 4, 3)], num_gpus=4, num_epochs=1, seed=5)
    plan_shardings(packed)
    expected = tmp_path / "expected.pt"
    torch.save(one_process(packed), expected)
    run_ranks(sp_worker.main, (str(packed.path), str(expected)), sp_worker.WORLD_SIZE)
