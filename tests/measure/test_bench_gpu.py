"""The benchmark of GPUs, on a tiny decoder and a CPU: each piece runs alone, and says what it ran."""

from __future__ import annotations

import csv
import re

import pytest

from packer_cli.config.gpu_model import read_profile

pytest.importorskip("torch")


def rows_of(path):
    with path.open() as file:
        rows = list(csv.DictReader(file))
    assert all(float(row["predicted"]) > 0 < float(row["measured"]) for row in rows)
    return rows


@pytest.mark.slow  # It packs, profiles and runs: half a minute.
def test_each_piece_runs_alone(tmp_path, capsys):
    from tests.benchmark.gpu import STRATEGIES, main

    def run(piece, *options):
        output = tmp_path / piece
        assert main([piece, "--tiny", "--repeats", "1", "--output", str(output), *options]) == 0
        assert read_profile(output / "profile.json").cost is not None
        text = (output / f"{piece}.md").read_text()
        assert text in capsys.readouterr().out
        return text

    assert "| 512 |" in run("profile")

    text = run("packs", "--packs", "6")
    rows = rows_of(tmp_path / "packs/packs.csv")
    assert text.startswith(f"{len(rows)} packs on CPU")
    assert f"| all | {len(rows)} |" in text
    work = [int(row["work"]) for row in rows]
    assert max(work) > 4 * min(work)
    assert any(int(row["samples"]) > 1 for row in rows)

    text = run("cluster")
    rows = rows_of(tmp_path / "cluster/cluster.csv")
    for strategy in STRATEGIES:
        of_plan = [row for row in rows if row["strategy"] == strategy]
        (iterations,) = re.findall(rf"^. {strategy} . (\d+) of \1 ", text, re.MULTILINE)
        assert len({row["iteration"] for row in of_plan}) == int(iterations)
    tokens = [sum(int(row["tokens"]) for row in rows if row["strategy"] == each) for each in STRATEGIES]
    assert len(set(tokens)) == 1
