"""The benchmark of training: its statistics, its padded batches, and one small round of it."""

from __future__ import annotations

import json

import numpy as np
import pytest

pytest.importorskip("torch")

from packer_cli.commands.plan import plan_cut
from packer_cli.config import PlanConfig
from packer_cli.config.resolve import resolve
from packer_cli.cost.profile import IterationRow, Profile
from packer_cli.plan.core.csr import plan_tokens_and_work
from packer_cli.plan.core.cut import Samples
from tests.benchmark.train.measured import iteration_seconds, rows_of, timed_again, turns_to_come, with_bandwidth
from tests.benchmark.train.padded import PaddedDataset, padded_rows
from tests.benchmark.train.pipelines import PipelineResult, pipelines_verdict
from tests.benchmark.train.sets import known_strategies
from tests.benchmark.train.table import Result, results_table, verdict


def test_an_iteration_takes_as_long_as_its_slowest_rank_in_its_median_round():
    rounds = np.array([[[1.0, 2.0], [5.0, 4.0]], [[3.0, 1.5], [4.5, 6.0]], [[2.5, 9.0], [0.5, 4.25]]])
    assert iteration_seconds(rounds).tolist() == [2.5, 4.5]


def test_ranks_that_cannot_be_the_slowest_do_not_run_again():
    nan = np.nan
    naive = np.array([[[8.0, 2.0, 1.0, 1.0], [1.0, 1.0, 1.0, 1.0]], [[nan, 7.0, nan, nan], [1.0, 1.0, 1.0, nan]]])
    balanced = np.array([[[2.0, 2.5, 1.8, 1.0]]])
    turns = turns_to_come({"naive": naive, "balanced": balanced}, num_processes=2)
    assert turns == {
        # 8 / sqrt(8 + 4.5), 1 / sqrt(4) and 2.5 / sqrt(4.5) against the greatest of them.
        "naive": [{"ranks": [0, 1], "runs": 6}, {"ranks": [0, 1, 2, 3], "runs": 1}],
        "balanced": [{"ranks": [0, 1], "runs": 3}],
    }
    assert iteration_seconds(naive).tolist() == [8, 1]


def test_a_profile_takes_the_times_of_other_runs_of_its_rows():
    rows = [IterationRow(length=64 * 2**i, seconds=each, tokens=64 * 2**i, memory_bytes=1000 * 2**i,
                         work=(64 * 2**i) ** 2 // samples)
            for i, (each, samples) in enumerate([(1.0, 1), (None, 1), (6.0, 8)])]  # fmt: skip
    profile = Profile(model={"num_layers": 2, "num_heads": 2}, gpu="CPU", num_gpus=1, memory_limit=10**9,
                      iterations=tuple(rows))  # fmt: skip
    assert [(row["length"], row["num_samples"]) for row in rows_of(profile)] == [(64, 1), (256, 8)]
    processes = [np.array([[1.0, 4.0], [2.0, 9.0], [5.0, 5.0]]), np.array([[4.0, 6.0], [3.0, 7.0], [4.0, 8.0]])]
    assert [row.seconds for row in timed_again(profile, processes).iterations] == [3, None, 6]


def test_padded_batches_hold_what_is_simulated():
    lengths = np.array([100, 60, 33, 200, 5, 7, 90, 41], dtype=np.int32)
    config = PlanConfig(groups="256:2", gpus=4, packing="padded", balance="none")
    plan = plan_cut(Samples(lengths=lengths), resolve(config))[0]
    tokens, work = plan_tokens_and_work(plan)
    rows = [padded_rows(plan, rank) for rank in range(4)]
    found, labels = [], 0
    for i in range(plan.epochs[0].num_iterations):
        for rank in (0, 2):
            first, second = (PaddedDataset(rows[place], 50)[i] for place in (rank, rank + 1))
            assert (first["sp_size"], first["sp_rank"], second["sp_rank"]) == (2, 0, 1)
            assert first["input_ids"].shape == second["input_ids"].shape == first["shift_labels"].shape
            labels += sum(int((each["shift_labels"] >= 0).sum()) for each in (first, second))
            borders = first["cu_seq_lens_q"].numpy()
            assert borders[-1] == 2 * first["input_ids"].shape[1]
            if len(rows[rank][i][3]) > 1 or rows[rank][i][3] != [0]:
                sizes = np.diff(borders)[: len(rows[rank][i][3])]
                found.append((int(sizes.sum()), int((sizes.astype(np.int64) ** 2).sum())))
    assert sorted(found) == sorted(zip(tokens.tolist(), work.tolist(), strict=True))
    assert labels == (lengths - 1).sum()


def test_the_table_names_what_is_off():
    def result(name: str, predicted: float, measured: float) -> Result:
        return Result(name=name, num_packs=4, num_tokens=1000, predicted=np.full(2, predicted),
                      runs=np.full((3, 2, 4), measured))  # fmt: skip

    results = [result("naive", 2.0, 2.0), result("hbp", 1.0, 1.25), result("balanced", 1.1, 1.1)]
    results.append(result("wlb", 1.04, 1.0))  # Not more than 5 % behind hbp.
    text = results_table(results)
    assert [line.split(" | ")[0] for line in text.splitlines()[2:]] == ["| wlb", "| balanced", "| hbp", "| naive"]
    assert verdict(results, 0.031) == (
        "The profile's fit is off by 3.1% in the mean (target: 5%); the greatest error of an epoch is -20.0%, of hbp "
        "(target: 5%). 5 of the 6 pairs of plans are predicted more than 5% apart; 4 of them are measured in the same "
        "order, but balanced before hbp."
    )
    assert verdict(results[:1], 0.031).endswith(
        "0 of the 0 pairs of plans are predicted more than 5% apart; 0 of them are measured in the same order."
    )


def test_a_pipeline_takes_what_the_recurrence_says_of_its_slowest_stage():
    stages = np.array([[[1.0, 2.0]] * 3, [[1.5, 2.5], [1.5, 2.5], [0.5, 0.5]]])
    result = PipelineResult(name="pp 2", num_parts=1, offsets=np.array([0, 2, 3]),
                            alone=np.stack([stages, 9 * stages, stages]), runs=np.full((3, 2), 5.0))  # fmt: skip
    # Each stage takes 9 seconds in all: the first is taken.
    assert [each.tolist() for each in result.micro_batches] == [[3, 3, 3], [1 / 3] * 3]
    assert result.predicted.tolist() == [9, 6]
    assert (result.error, result.step_error, result.noise) == (0.5, 0.5, 0)
    assert pipelines_verdict([result]) == "The greatest error of a pipeline is +50.0%, of pp 2 (target: 5%)."


def test_the_bandwidth_is_that_of_what_the_ranks_exchange():
    profile = Profile(model={}, gpu="CPU", num_gpus=2, iterations=(), assumed={"bandwidth": 1.0, "weights": "whole"})
    processes = [np.array([[1.0], [4.0], [2.0]]), np.array([[4.0], [4.0], [5.0]])]
    assert with_bandwidth(profile, 600, processes).assumed == {"bandwidth": 200.0, "weights": "whole"}


@pytest.mark.slow  # It profiles, packs and trains in processes of its own: a minute.
def test_a_round(tmp_path, capsys):
    from tests.benchmark.train.__main__ import main

    arguments = ["--tokens", "8000", "--longest", "512", "--gpus", "4", "--minutes", "0", "--pipeline-rounds", "1"]
    assert main([*arguments, "--output", str(tmp_path)]) == 0
    text = capsys.readouterr().out
    assert all(f"| {name} | " in text for name in (*known_strategies(), "pp 2, vpp 2"))
    assert json.loads((tmp_path / "profile.json").read_text())["assumed"]["weights"] == "whole"
    assert (tmp_path / "report.md").read_text() in text
