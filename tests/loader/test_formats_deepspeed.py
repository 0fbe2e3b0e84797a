"""DeepSpeed's own classes for ALST (Ulysses), where it is installed; test_formats.py holds the rule of its adapter."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.multiprocessing as mp

from packer_cli.loader import PackedDataset
from tests.loader import deepspeed_worker
from tests.loader.llama import sample_losses, tiny_llama

ulysses = pytest.importorskip("deepspeed.runtime.sequence_parallel.ulysses_sp", exc_type=ImportError)


def test_batches_are_what_its_adapter_makes(packed: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The adapter gathers a row of each rank; here all ranks of the group hold the same one."""
    compared = 0
    for rank in range(packed.num_gpus):
        rows = PackedDataset(packed.path, rank, packed.num_gpus, sp_slice=False)
        for batch, row in zip(
            PackedDataset(packed.path, rank, packed.num_gpus, format="deepspeed"), rows, strict=True
        ):

            def all_gather(out: list[torch.Tensor], tensor: torch.Tensor, group: Any) -> None:
                for part in out:
                    part.copy_(tensor)

            monkeypatch.setattr(ulysses, "dist", SimpleNamespace(all_gather=all_gather))
            plain = {key: row[key] for key in ("input_ids", "position_ids", "labels")}
            adapter = ulysses.UlyssesSPDataLoaderAdapter([plain], row["sp_rank"], None, row["sp_size"], "cpu")
            wanted = next(adapter)
            assert batch.keys() == wanted.keys()
            assert all(torch.equal(batch[key], wanted[key]) for key in wanted)
            compared += row["sp_size"] > 1
    assert compared


def test_its_attention_gives_the_losses_of_the_samples(make_set: Any, tmp_path: Path) -> None:
    """Two processes share each row: their parts' losses, put together, are those of the samples one by one."""
    packed = make_set(tmp_path / "set", [(48, 2, 6)], num_gpus=2, num_epochs=1)
    mp.start_processes(
        deepspeed_worker.main, (str(packed.path), str(tmp_path)), deepspeed_worker.WORLD_SIZE, start_method="spawn"
    )
    parts = [torch.load(tmp_path / f"losses-{rank}.pt") for rank in range(deepspeed_worker.WORLD_SIZE)]
    model = tiny_llama("sdpa")
    assert parts[0].keys() == parts[1].keys() == {pack.id for pack in packed.packs}
    assert max(len(pack.samples) for pack in packed.packs) > 2
    for pack in packed.packs:
        found, merged = (torch.cat(halves) for halves in zip(*(part[pack.id] for part in parts), strict=True))
        wanted = torch.cat(sample_losses(model, pack.samples)).detach()
        torch.testing.assert_close(found[: len(wanted)], wanted, rtol=1e-10, atol=1e-10)
        assert not found[len(wanted) :].any()
        if len(pack.samples) > 1:
            assert abs(merged.sum().item() - wanted.sum().item()) > 1e-2
