"""What each of two processes of `test_formats_deepspeed.py` runs: DeepSpeed's Ulysses attention over shared rows."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from packer_cli.loader import PackedDataset, metadata_of
from packer_cli.loader.losses import token_losses
from tests.loader.flash_twin import install_flash_twin
from tests.loader.llama import tiny_llama

WORLD_SIZE = 2


def main(rank: int, folder: str, output: str) -> None:
    """Write, for each pack, the losses of this rank's part of its row, and those of one whose samples are merged."""
    os.environ |= {"GLOO_SOCKET_IFNAME": "lo", "RANK": str(rank), "LOCAL_RANK": str(rank), "MASTER_ADDR": "127.0.0.1"}
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{output}/store", rank=rank, world_size=WORLD_SIZE
    )
    import deepspeed.comm
    from deepspeed.runtime.sequence_parallel.ulysses_sp import UlyssesSPAttentionHF

    deepspeed.comm.init_distributed(dist_backend="gloo", dist_init_required=False, verbose=False)
    with pytest.MonkeyPatch.context() as monkeypatch:
        install_flash_twin(monkeypatch)
        model = tiny_llama("flash_twin")
        UlyssesSPAttentionHF.register_with_transformers(model, "flash_twin", WORLD_SIZE, 1)
        found = {}
        for batch in PackedDataset(folder, rank, WORLD_SIZE, format="deepspeed"):
            known = metadata_of(batch)
            if known["pack_id"] >= 0:
                # As the DeepSpeed loop does: the labels go past the model.
                labels = batch.pop("shift_labels")
                losses = token_losses(model(**batch, use_cache=False).logits, labels)
                # As with positions that do not restart.
                length = batch["position_ids"].numel()
                batch["position_ids"] = torch.arange(rank * length, (rank + 1) * length)[None]
                merged = token_losses(model(**batch, use_cache=False).logits, labels)
                found[known["pack_id"]] = losses.detach(), merged.detach()
    torch.save(found, Path(output) / f"losses-{rank}.pt")
    torch.distributed.destroy_process_group()
