"""The benchmark of GPUs, on a tiny decoder and a CPU: the script runs, and says what it ran."""

from __future__ import annotations

import csv

import pytest

from packer_cli.config.gpu_model import read_profile

pytest.importorskip("torch")


@pytest.mark.slow  # It packs, profiles and runs: ten seconds.
def test_the_script_runs(tmp_path, capsys):
    from tests.benchmark.gpu import main

    assert main(["--tiny", "--packs", "6", "--repeats", "1", "--output", str(tmp_path)]) == 0
    assert read_profile(tmp_path / "profile.json").cost is not None
    with (tmp_path / "packs.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 6
    assert all(float(row["predicted_seconds"]) > 0 < float(row["measured_seconds"]) for row in rows)
    assert any(int(row["samples"]) > 1 for row in rows)
    text = (tmp_path / "report.md").read_text()
    assert text.startswith("6 packs on CPU; mean error of the fit to its own rows ")
    assert "| all | 6 |" in text
    assert text in capsys.readouterr().out
