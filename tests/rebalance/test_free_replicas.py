"""Sets whose replicas run freely (`--lockstep 1`), in all that reads or changes a packed set."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from packer_cli.cli.main import main
from packer_cli.plan.core.types import FILLER
from packer_cli.shards.plan_file import read_plan
from tests.cli_runner import run

pytest.importorskip("torch")

from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

from packer_cli.loader import PackedDataset

GPUS = 6


def hbpack(*arguments: Any) -> str:
    done = run(main, *arguments)
    assert done.code == 0, done.stderr
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def packed(repo: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Degrees 1 and 2, and packs of unlike work in an iteration."""
    sample, output = repo / "examples" / "sample", tmp_path_factory.mktemp("free") / "out"
    hbpack(
        "pack", sample / "chats.jsonl", sample / "journals.jsonl", "--tokenizer", sample / "tokenizer", "--groups",
        "1k:1,8k:2", "--gpus", GPUS, "--global-tokens", "60k", "--lockstep", 1, "--cost", "1,50", "--balance", "none",
        "--workers", 1, "--output", output,
    )  # fmt: skip
    return output


def open_set(folder: Path, rank: int, num_gpus: int = GPUS, epoch: int | None = None) -> PackedDataset:
    return PackedDataset(folder, rank, num_gpus, epoch, lockstep=False)


def packs_of(item: list[dict[str, Any]]) -> list[int]:
    return [batch["pack_id"] for batch in item]


def epoch_of(folder: Path, num_gpus: int, epoch: int | None = None, state: Any = None) -> list[list[Any]]:
    """[rank][iteration]: the micro-batches."""
    found = []
    for rank in range(num_gpus):
        dataset = open_set(folder, rank, num_gpus, epoch)
        if state:
            dataset.load_state_dict(state)
        found.append(list(dataset))
    return found


def counted_packs(ranks: list[list[Any]]) -> Counter[int]:
    """How often each pack is read, by the first rank of a replica."""
    return Counter(
        batch["pack_id"] for items in ranks for item in items for batch in item
        if batch["sp_rank"] == 0 and batch["pack_id"] >= 0
    )  # fmt: skip


@pytest.mark.parametrize("epoch", [0, 3])
def test_ranks_run_other_numbers_of_micro_batches_and_meet_in_each_iteration(packed: Path, epoch: int) -> None:
    """Also in an epoch that was not written."""
    ranks = epoch_of(packed, GPUS, epoch)
    plan, _ = read_plan(packed / "plan.arrow")
    assert counted_packs(ranks) == dict.fromkeys(range(len(plan.packs)), 1)
    assert len({len(items) for items in ranks}) == 1
    assert any(len({len(item) for item in items}) > 1 for items in zip(*ranks, strict=True))
    for i, items in enumerate(zip(*ranks, strict=True)):
        assert len({(batch["step"], batch["iteration"], batch["dp_size"]) for item in items for batch in item}) == 1
        assert items[0][0]["iteration"] == i
        for rank, item in enumerate(items):
            # The ranks of a replica read the same packs, and a rank with a pack has no filler.
            first = rank - item[0]["sp_rank"]
            assert packs_of(item) == packs_of(items[first])
            assert FILLER not in packs_of(item) or len(item) == 1


def test_the_set_is_sound_and_exported_in_the_order_of_use(packed: Path, tmp_path: Path) -> None:
    assert "is sound" in hbpack("verify", packed)
    hbpack("export", packed, "--to", "parquet", "--output", tmp_path / "rows")
    import pyarrow.parquet as pq

    rows = pq.read_table(tmp_path / "rows")["pack_id"].to_pylist()
    ranks = epoch_of(packed, GPUS)
    expected = [
        batch["pack_id"] for items in zip(*ranks, strict=True) for item in items for batch in item
        if batch["sp_rank"] == 0 and batch["pack_id"] >= 0
    ]  # fmt: skip
    assert rows == expected


def test_show_lists_a_ranks_micro_batches(packed: Path) -> None:
    dataset = open_set(packed, 1)
    items = [*dataset]
    i = next(i for i, item in enumerate(items) if len(item) > 2)
    packs = packs_of(items[i])
    [view] = json.loads(hbpack("show", packed, "--rank", 1, "--iteration", i, "--json"))
    assert (view["step_iterations"], view["step_packs"]) == ([i], packs)
    assert view["pack"]["pack_id"] == packs[0]
    lines = hbpack("show", packed, "--rank", 1, "--iteration", i).splitlines()
    begin = lines.index(f"  rank 1 runs {len(packs)} micro-batches in iteration {i}:")
    assert [line.split()[1] for line in lines[begin + 2 : begin + 2 + len(packs)]] == [*map(str, packs)]
    assert [line.split()[-2:] for line in lines if "--pack" in line] == [["--pack", str(pack)] for pack in packs[1:]]
    step = dataset.step_of(i)
    own = [pack for item in items for pack in packs_of(item) if item[0]["step"] == step]
    assert json.loads(hbpack("show", packed, "--rank", 1, "--step", step, "--json"))[0]["step_packs"] == own
    assert (
        f"  rank 1 runs {len(own)} micro-batches in step {step}:"
        in hbpack("show", packed, "--rank", 1, "--step", step).splitlines()
    )


@pytest.mark.parametrize("workers", [0, 2])
def test_loaders_resume_at_an_iteration(packed: Path, workers: int) -> None:
    wanted = [packs_of(item) for item in open_set(packed, 4)]
    dataset = open_set(packed, 4)
    assert [packs_of(item) for item in DataLoader(dataset, batch_size=None, num_workers=workers)] == wanted
    stopped, begun = [], open_set(packed, 4)
    loader = StatefulDataLoader(begun, batch_size=None, num_workers=workers, sampler=begun.sampler())
    for _, item in zip(range(3), loader, strict=False):
        stopped.append(packs_of(item))
    resumed = open_set(packed, 4)
    rest = StatefulDataLoader(resumed, batch_size=None, num_workers=workers, sampler=resumed.sampler())
    rest.load_state_dict(loader.state_dict())
    assert stopped + [packs_of(item) for item in rest] == wanted


@pytest.mark.parametrize("epoch", [0, 2])
def test_another_number_of_gpus_runs_each_pack_that_is_left_once(packed: Path, tmp_path: Path, epoch: int) -> None:
    """From a state inside the first epoch, and inside one that was not written; and then back."""
    folder = tmp_path / "out"
    shutil.copytree(packed, folder, symlinks=True)
    before = epoch_of(folder, GPUS, epoch)
    dataset = open_set(folder, 0, GPUS, epoch)
    stop = next(i for i in range(len(dataset)) if dataset.step_of(i) == 2)
    used = counted_packs([items[:stop] for items in before])
    (tmp_path / "state.json").write_text(json.dumps(dataset.state_dict(stop)))
    hbpack("rebalance", folder, "--gpus", 4, "--state", tmp_path / "state.json")
    assert "is sound" in hbpack("verify", folder)
    left = epoch_of(folder, 4)
    assert {batch["step"] for items in left for item in items for batch in item} == set(
        range(2, open_set(folder, 0, 4).num_steps)
    )
    assert used + counted_packs(left) == counted_packs(before)
    assert counted_packs(epoch_of(folder, 4, epoch + 5)) == counted_packs(before)
    hbpack("rebalance", folder, "--gpus", GPUS, "--epoch", epoch + 1)
    assert counted_packs(epoch_of(folder, GPUS)) == counted_packs(before)
    assert "is sound" in hbpack("verify", folder)
