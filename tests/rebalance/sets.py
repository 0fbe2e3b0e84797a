"""What a packed set holds, read as trainers read it."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from packer_cli.commands import rebalance
from packer_cli.commands.rebalance import Stop
from packer_cli.format.manifest import Manifest
from packer_cli.shards.versions import make_current
from tests.reference import home

loader = pytest.importorskip("packer_cli.loader", exc_type=ImportError)


def manifest_of(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "hbpack.json").read_text())


def all_packs(folder: Path) -> Counter:
    return Counter(range(sum(group["num_packs"] for group in manifest_of(folder)["groups"])))


def read_steps(folder: Path, epoch: int, num_steps: int | None) -> tuple[Counter, Counter, dict[str, Any]]:
    """Run steps of an epoch on all ranks, from where the set begins: (packs, samples, state after them)."""
    num_gpus = manifest_of(folder)["num_gpus"]
    packs, samples, states = Counter(), Counter(), []
    for rank in range(num_gpus):
        data = loader.PackedDataset(folder, rank, num_gpus, epoch=epoch, sp_slice=False)
        first = data.step_of(0)
        end = data.num_steps if num_steps is None else min(first + num_steps, data.num_steps)
        for i, batch in enumerate(data):
            if batch["step"] >= end:
                i -= 1
                break
            assert batch["step"] >= first
            if batch["sp_rank"] == 0 and batch["pack_id"] >= 0:
                packs[batch["pack_id"]] += 1
                samples.update(batch["sample_ids"].tolist())
        states.append(data.state_dict(i + 1 if end > first else 0))
    assert states == [states[0]] * num_gpus
    return packs, samples, states[0]


def deal(out: Path, num_gpus: int, stop: Stop, global_tokens: int | None = None) -> tuple[Manifest, bool]:
    """Rebalance the current version of a set, as `hbpack rebalance` does."""
    manifest, is_new = rebalance.deal(home(out), num_gpus, stop, global_tokens)
    make_current(out, home(out), manifest, "rebalance")
    return manifest, is_new


def shard_bytes(folder: Path) -> dict[str, Any]:
    folder = home(folder)
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.glob("shards/*/*.arrow"))}
