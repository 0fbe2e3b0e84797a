"""Windows that grow, in a packed set: what the commands say of them, and what the loader and trainers make of them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from packer_cli.cli.main import main
from packer_cli.errors import ConfigError
from packer_cli.shards.manifest import read_manifest
from packer_cli.shards.plan_file import read_plan
from tests.cli_runner import run

STEPS = 4
NOTE = (
    "an export has no windows: training on it sees whole samples from the first step on, without --curriculum "
    "skyladder"
)


def hbpack(*arguments: object) -> list[str]:
    """The messages."""
    done = run(main, *arguments)
    assert done.code == 0, done.stderr
    return done.stderr.splitlines()


def options(num_steps: int) -> tuple[object, ...]:
    return "--groups", "512:1", "--gpus", 2, "--curriculum", "skyladder", "--curriculum-steps", num_steps


@pytest.fixture(scope="module")
def packed(repo: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    sample, output = repo / "examples" / "sample", tmp_path_factory.mktemp("windows") / "out"
    hbpack(
        "pack", sample / "journals.jsonl", "--tokenizer", sample / "tokenizer", *options(STEPS), "--workers", 1,
        "--output", output,
    )  # fmt: skip
    return output


def test_plan_says_that_windows_outlast_the_epoch(packed: Path, tmp_path: Path) -> None:
    """Attention would change at once from them to whole samples."""
    text = hbpack("plan", packed, *options(1000), "--output", tmp_path)
    (schedule,) = read_plan(tmp_path / "plan.arrow")[0].epochs
    note = (
        f"the first epoch has {schedule.num_steps} steps, fewer than --curriculum-steps 1000, so it ends with windows "
        f"of {schedule.step_window[-1]:,} tokens; later epochs have none"
    )
    assert schedule.step_window[-1] > 100
    assert text[-1] == note
    assert "windows" not in hbpack("plan", packed, *options(schedule.num_steps - 1), "--output", tmp_path)[-1]


def test_export_says_that_it_has_none(packed: Path, tmp_path: Path) -> None:
    """As long as there are any left."""
    assert hbpack("export", packed, "--to", "parquet", "--output", tmp_path / "rows")[0] == NOTE
    for step, has_windows in ((STEPS - 1, True), (STEPS, False)):
        folder = tmp_path / f"from-{step}"
        shutil.copytree(packed, folder)
        hbpack("rebalance", folder, "--gpus", 4, "--from-step", step)
        assert read_manifest(folder).has_windows == has_windows
        text = hbpack("export", folder, "--to", "parquet", "--output", tmp_path / f"rows-{step}")
        assert (text[0] == NOTE) == has_windows


def test_planned_borders_hold_all_rows(packed: Path) -> None:
    pytest.importorskip("torch")
    from packer_cli.loader import PackedDataset

    dataset = PackedDataset(packed, 1, 2, pad_to="capacity", max_segments="plan")
    # The samples and padding, and 512 tokens cut every 32, with some room for padding that aligns.
    samples = max(group["most_samples"] for group in dataset.manifest["groups"])
    (size,) = {len(batch["cu_seq_lens_q"]) for batch in dataset}
    assert 0 <= size - 1 - (samples + 1 + 512 // 32) < 4
    assert max(int((batch["cu_seq_lens_q"].diff() > 0).sum()) for batch in dataset) == 512 // 32 > samples
    with pytest.raises(ConfigError, match=f"max_segments is {size - 2}, but windows of 32 tokens may cut a row of"):
        PackedDataset(packed, 1, 2, max_segments=size - 2)
