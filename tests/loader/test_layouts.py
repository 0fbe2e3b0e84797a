"""A set for tensor, context and pipeline parallelism, from `hbpack pack` to every rank's batches."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from packer_cli.cli.main import main
from packer_cli.format.layout import Layout
from packer_cli.loader import PackedDataset
from packer_cli.loader.parallel import plan_rank, take_slice
from tests.cli_runner import run
from tests.reference import home

LAYOUT = Layout(cp=2, tp=2, pp=2)
NUM_GPUS = 16


@pytest.fixture(scope="module")
def packed(repo: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("layouts") / "out"
    sample = repo / "examples" / "sample"
    options = ["--tokenizer", sample / "tokenizer", "--groups", "1k,4k", "--workers", 1, "--output", out]
    step = ["--parallel", "tp=2,cp=2,pp=2", "--gpus", NUM_GPUS, "--global-tokens", "32k", "--lockstep", 1]
    done = run(main, "pack", str(sample / "journals.jsonl"), *map(str, options), *map(str, step))
    assert done.code == 0, done.stderr
    return out


def test_all_ranks_of_a_replica_read_its_packs_and_share_the_rows(packed):
    whole = [PackedDataset(packed, rank, NUM_GPUS, lockstep=False, sp_slice=False) for rank in range(NUM_GPUS)]
    parts = [PackedDataset(packed, rank, NUM_GPUS, lockstep=False) for rank in range(NUM_GPUS)]
    seen = []
    for i in range(len(whole[0])):
        for dp_rank in range(2):
            first = whole[dp_rank * 8][i]
            seen += [batch["pack_id"] for batch in first if batch["pack_id"] >= 0]
            for gpu in range(8):
                place = LAYOUT.place(gpu)
                rank = plan_rank(LAYOUT, dp_rank=dp_rank, **place._asdict())
                batches = parts[rank][i]
                assert [batch["pack_id"] for batch in batches] == [batch["pack_id"] for batch in first]
                for row, batch in zip(first, batches, strict=True):
                    assert {name: batch[name] for name in place._fields} == place._asdict()
                    assert {name: batch[name] for name in LAYOUT.sizes} == LAYOUT.sizes
                    assert batch["dp_rank"] == dp_rank
                    for name in ("input_ids", "position_ids", "shift_labels"):
                        mine = take_slice(row[name], row["cu_seq_lens_q"], 2, place.cp_rank, batch["sp_sharding"])
                        assert batch[name].tolist() == mine.tolist()
                    assert batch["input_ids"].shape[1] % LAYOUT.tp == 0
    manifest = json.loads((packed / "hbpack.json").read_text())
    assert sorted(seen) == list(range(sum(group["num_packs"] for group in manifest["groups"])))
    assert whole[0].replicas == {LAYOUT: (0, 8)}


def test_ranks_of_a_replica_share_a_file_and_the_set_is_intact(packed):
    files = sorted(path.name for path in (home(packed) / "ranks" / "epoch-000").iterdir())
    assert files == ["iterations.arrow", "rank-00000-00007.arrow", "rank-00008-00015.arrow"]
    assert [path.name for path in sorted((home(packed) / "shards").iterdir())] == [
        "g0-1024-sp1-cp2-tp2-pp2",
        "g1-4096-sp1-cp2-tp2-pp2",
    ]
    assert run(main, "verify", str(packed)).code == 0
    shown = run(main, "show", str(packed), "--rank", "13")
    assert (
        "sp1-cp2-tp2-pp2: ranks 8 to 15 run this row; rank 13 is PP rank 1 of 2, CP rank 0 of 2, TP rank 1 of 2"
        in " ".join(shown.stdout.split())
    )


def test_it_is_dealt_to_other_gpus_in_whole_replicas(packed, tmp_path):
    done = run(main, "rebalance", str(packed), "--gpus", "12")
    assert done.code == 2
    assert done.stderr == (
        "error: --gpus 12: a replica has 8 GPUs (sp1-cp2-tp2-pp2), which must divide it; choose 8 or 16, or plan with "
        "other degrees\n"
    )


def test_every_row_is_shared(packed):
    overall = json.loads(run(main, "stats", str(packed), "--json").stdout)["overall"]
    assert overall["cr"] == 1  # By CP.
