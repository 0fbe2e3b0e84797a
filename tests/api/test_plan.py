"""`plan`: the plan of `hbpack stats` and `hbpack plan`, from whatever holds lengths."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import packer_cli as hbpack
from tests.api.conftest import GROUPS


@pytest.fixture(scope="module")
def plan(lengths):
    return hbpack.plan(lengths, global_tokens="16k", epochs=2, **GROUPS)


def test_the_figures_are_those_of_the_command(plan, lengths, command, tmp_path):
    np.save(tmp_path / "lengths.npy", lengths)
    done = command(
        "stats", tmp_path / "lengths.npy", "--groups", GROUPS["groups"], "--gpus", GROUPS["gpus"],
        "--global-tokens", "16k", "--epochs", 2, "--json",
    )  # fmt: skip
    assert json.loads(json.dumps(plan.stats().values())) == json.loads(done.stdout)
    assert plan.metrics == plan.stats().metrics


@pytest.mark.parametrize(
    "convert",
    [list, tuple, pa.array, lambda values: pa.chunked_array([values[:5], values[5:]]), pd.Series, np.uint64],
    ids=["list", "tuple", "arrow", "chunked", "pandas", "uint64"],
)
def test_lengths_come_in_any_form(plan, lengths, convert):
    other = hbpack.plan(convert(lengths), global_tokens=np.int64(16384), epochs=2, **GROUPS)
    assert np.array_equal(other.arrays.packs.pieces, plan.arrays.packs.pieces)


def test_a_path_of_lengths(plan, lengths, tmp_path):
    (tmp_path / "lengths.txt").write_text("\n".join(map(str, lengths)))
    other = hbpack.plan(tmp_path / "lengths.txt", global_tokens="16k", epochs=2, **GROUPS)
    assert np.array_equal(other.arrays.packs.pieces, plan.arrays.packs.pieces)


@pytest.mark.parametrize("epoch", [0, 1])
def test_iterations_hold_every_token_once_on_all_gpus(plan, lengths, epoch):
    iterations = plan.iterations(epoch)
    held = [np.zeros(length, dtype=int) for length in lengths]
    steps = []
    for number, iteration in enumerate(iterations):
        assert iteration.number == number
        steps.append(iteration.step)
        assert [gpu for each in iteration.micro_batches for gpu in each.gpus] == list(range(GROUPS["gpus"]))
        for batch in iteration.micro_batches:
            assert (batch.pack is None) == (batch.num_tokens == 0)
            assert batch.num_tokens <= batch.group.capacity
            for sample, start, length in zip(batch.samples, batch.starts, batch.lengths, strict=True):
                held[sample][start : start + length] += 1
    assert all((tokens == 1).all() for tokens in held)
    assert steps == sorted(steps)
    assert len(steps) == len(iterations)


def test_the_table_has_a_row_for_each_micro_batch(plan):
    iterations = plan.iterations()
    rows = iterations.table().to_pylist()
    batches = [(iteration, batch) for iteration in iterations for batch in iteration.micro_batches]
    assert len(rows) == len(batches)
    for row, (iteration, batch) in zip(rows, batches, strict=True):
        assert row == {
            "iteration": iteration.number,
            "step": iteration.step,
            "group": plan.groups.index(batch.group),
            "first_gpu": batch.gpus[0],
            "num_gpus": len(batch.gpus),
            "pack": batch.pack,
            "row_length": batch.row_length,
            "num_samples": len(batch.samples),
            "num_tokens": batch.num_tokens,
            "attention_work": batch.attention_work,
        }


def test_iterations_are_a_sequence(plan):
    iterations = plan.iterations()
    assert iterations[-1].number == len(iterations) - 1
    assert [each.number for each in iterations[2:5]] == [2, 3, 4]
    with pytest.raises(IndexError):
        iterations[len(iterations)]
    with pytest.raises(
        hbpack.HbpackError, match="epoch 2 is not planned; the plan has 2 epochs, from 0 on: plan more with --epochs"
    ):
        plan.iterations(2)


def test_a_plan_says_what_it_is(plan):
    overall = plan.metrics.overall
    assert repr(plan) == (
        f"<Plan of 800 samples: {overall.num_packs} packs, {overall.num_iterations} iterations, "
        f"{overall.num_steps} steps on 8 GPUs; groups 1k:1,8k:4>"
    )
    assert repr(plan.iterations()) == f"<{overall.num_iterations} iterations, {overall.num_steps} steps>"


SUCH_AS = "give the tokens of each sample, such as numpy.array([512, 80])"
RULE = "a length is 1 .. 2147483647; correct it, or leave it out"


@pytest.mark.parametrize(
    ("lengths", "options", "message"),
    [
        ([], {}, "there is nothing to plan: no sample is left; add data, or choose longer --groups"),
        ([5, 0], {}, f"the lengths: value 2 is 0; {RULE}"),
        ([5, 2**31], {}, f"the lengths: value 2 is 2147483648; {RULE}"),
        ([5.5], {}, f"the lengths must hold one row of integers, got float64 of shape (1,); {SUCH_AS}"),
        (pa.array([5, None]), {}, f"the lengths must hold one row of integers, got float64 of shape (2,); {SUCH_AS}"),
        (
            [[1], [2, 3]],
            {},
            (
                "the lengths are not one row of integers: setting an array element with a sequence. The requested "
                "array has an inhomogeneous shape after 1 dimensions. The detected shape was (2,) + inhomogeneous "
                "part; give the tokens of each sample, such as [512, 80]"
            ),
        ),
        ([[1, 2], [3, 4]], {}, f"the lengths must hold one row of integers, got int64 of shape (2, 2); {SUCH_AS}"),
        (["a", "b"], {}, "plan() takes one path, got 2; pack() and compare() take several"),
        (
            "nowhere.npy",
            {},
            "'nowhere.npy' does not exist; name a packed data set, a token store or a file of lengths",
        ),
        ([5], {"gpu": 4}, "--gpu must be text, got 4"),
        ([5], {"strategy": ["hbp"]}, "--strategy must be text, got ['hbp']"),
        (
            [5],
            {"gpus": 3},
            "--gpus 3: a replica has 4 GPUs (sp4), which must divide it; choose 4, or plan with other degrees",
        ),
        ([5], {"groups": ["8k", "1k"]}, "groups must have rising capacities, got 8k,1k; sort them"),
        ([5], {"packing": "best"}, "--packing: unknown packing algorithm 'best'"),
        ([5], {"packings": "bfs"}, "plan() has no option 'packings' (did you mean 'packing'?)"),
        ([5], {"quick": True}, "plan() has no option 'quick'; it has align, "),
        ([5], {"overflow": "error", "groups": "4"}, "the longest sample has 5 tokens, over the largest group's 4; "),
        ([5], {"output": "out"}, "output: a plan is written beside the tokens of a token store, which lengths lack"),
    ],
)
def test_what_is_wrong_is_one_line(lengths, options, message):
    with pytest.raises(hbpack.HbpackError) as error:
        hbpack.plan(lengths, **{**GROUPS, **options})
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)


def test_a_plan_is_written_as_the_command_writes_it(packed, command, tmp_path):
    made = hbpack.plan(packed.path, output=tmp_path / "by_api", groups="8k:4", gpus=4)
    done = command("plan", packed.path, "--output", tmp_path / "by_command", "--groups", "8k:4", "--gpus", 4)
    assert done.code == 0, done.stderr
    written = [(tmp_path / name / "plan.arrow").read_bytes() for name in ("by_api", "by_command")]
    assert written[0] == written[1]
    in_memory = hbpack.plan(packed.path, groups="8k:4", gpus=4)
    assert made.metrics == in_memory.metrics
    assert np.array_equal(made.arrays.packs.pieces, in_memory.arrays.packs.pieces)


def test_automatic_groups_are_remembered(lengths, model):
    made = hbpack.plan(lengths, groups="auto", gpus=8, model=model, gpu="h100")
    assert ",".join(map(str, made.groups)) == made.group_choice.groups
