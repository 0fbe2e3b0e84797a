"""Padded batches: which samples share one, what the metrics say of them, and where they are refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packer_cli.commands.stats import stats
from packer_cli.compare.rows import default_rows, parse_rows
from packer_cli.config import PlanConfig
from packer_cli.config.resolve import require_plan, resolve
from packer_cli.errors import ConfigError, PlanError
from packer_cli.plan.build import build_plan
from packer_cli.plan.core.check import check_plan
from packer_cli.plan.core.metrics import least_works, measure
from packer_cli.plan.core.segments import row_lengths
from packer_cli.plan.core.streams import rng_state
from packer_cli.plan.core.types import FILLER, Pieces
from packer_cli.simulate.epoch import simulate
from tests import naive
from tests.plan.packing import instances, run
from tests.simulate.test_simulate import model

WHOLE = "--packing: packing 'padded' pads whole batches,"


def padded_plan(lengths, packing="padded", balance="none", gpus=2, capacity=100):
    config = PlanConfig(groups=str(capacity), gpus=gpus, packing=packing, balance=balance)
    lengths = np.array(lengths, dtype=np.int32)
    pieces = Pieces(samples=None, start=np.zeros(len(lengths), dtype=np.int32), length=lengths)
    plan = build_plan(pieces, resolve(config).request)
    check_plan(plan)
    return plan


@given(
    instance=instances(),
    seed=st.integers(0, 2**64),
    batch=st.integers(0, 5),
    order=st.sampled_from(["random", "sorted"]),
)
def test_batches_equal_their_twin(instance, seed, batch, order):
    lengths, capacity = instance
    lengths_of = lengths.tolist()
    given_order = (
        naive.shuffled(len(lengths), int(rng_state(seed)[0])) if order == "random" else naive.descending(lengths_of)
    )
    expected = naive.padded_batches(lengths_of, given_order, capacity, batch)
    assert run(f"padded:batch={batch},order={order}", lengths, capacity, seed) == expected


def test_metrics_of_padded_batches_by_hand():
    # Sorted, two a batch: {8, 6}, {4, 4} are an iteration, {3, 1} and a filler another one.
    plan = padded_plan([4, 1, 8, 3, 6, 4], "padded:order=sorted,batch=2", "sort")
    metrics = measure(plan)
    assert metrics.num_tokens == 26
    assert metrics.ave_t == 26 / 4
    assert metrics.pr == 1 - 26 / (16 + 8 + 6)
    assert metrics.dbr == pytest.approx(((1 - 24 / 32) + 0.5) / 2)
    assert metrics.abr == pytest.approx(((1 - (128 + 32) / 256) + 0.5) / 2)
    assert metrics.num_fillers == 1
    assert sorted(plan.epochs[0].slot_row_length.tolist()) == [0, 6, 8, 16]


def test_one_sample_a_batch_has_no_padding():
    metrics = measure(padded_plan(range(1, 65), "padded:batch=1"))
    assert metrics.pr == 0
    assert metrics.ave_t == np.mean(range(1, 65))
    assert metrics.dbr > 0.2


@given(lengths=st.lists(st.integers(1, 100), min_size=1, max_size=60), batch=st.integers(0, 4), gpus=st.integers(1, 4))
def test_every_padded_plan_passes_the_checker_and_its_bounds(lengths, batch, gpus):
    plan = padded_plan(lengths, f"padded:batch={batch}", gpus=gpus)
    schedule = plan.epochs[0]
    longest = {k: lengths_of.max() * len(lengths_of) for k, lengths_of in enumerate(batches_of(plan))}
    for pack, row in zip(schedule.slot_pack, schedule.slot_row_length, strict=True):
        assert row == (0 if pack == FILLER else longest[pack])
    padded = replace(plan, pieces=replace(plan.pieces, length=row_lengths(plan)))
    assert (least_works(plan) == least_works(padded)).all()
    assert measure(plan).abr == measure(padded).abr
    assert measure(plan).dbr == measure(padded).dbr


def batches_of(plan):
    bounds = zip(plan.packs.offsets[:-1], plan.packs.offsets[1:], strict=True)
    return [plan.pieces.length[plan.packs.pieces[a:b]] for a, b in bounds]


def test_a_batch_over_the_capacity_is_found():
    plan = padded_plan([50, 50], capacity=100)
    short = replace(plan, pieces=replace(plan.pieces, length=np.array([51, 40], dtype=np.int32)))
    with pytest.raises(PlanError) as error:
        check_plan(short)
    assert str(error.value) == "pack 0 holds 102 tokens, over its capacity of 100"


def test_padding_takes_the_time_of_tokens():
    """Two samples of 40 and 10 tokens, padded, take as long as two of 40."""
    padded, full = padded_plan([40, 10]), padded_plan([40, 40])
    one, two = (simulate(plan, model()) for plan in (padded, full))
    assert one.seconds == pytest.approx(two.seconds)
    assert one.group_tokens.tolist() == [50]


@pytest.mark.parametrize("option", [{"align": 16}, {"max_samples": 3}, {"mask": "causal"}])
def test_rows_of_their_own_shape_are_refused_and_left_out(option):
    given = {"groups": "1k", "gpus": 1, **option}
    with pytest.raises(ConfigError) as error:
        resolve(PlanConfig(**given, packing="padded", balance="none"))
    assert str(error.value) == (
        f"{WHOLE} which do not support --align, --max-samples or --mask causal; leave them out, or give another "
        "packing"
    )
    names = [row.name for row in default_rows(resolve(PlanConfig(**given)))]
    assert "isf" in names
    assert not [name for name in names if "padded" in name]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"packing": "padded", "groups": "1k:1,2k:1", "balance": "none"},
            f"{WHOLE} so it needs exactly one group; give one, or another packing",
        ),
        (
            {"packing": "padded", "groups": "1k"},
            f"{WHOLE} so it cannot exchange samples; give --balance sort, window:K or none, without +refine",
        ),
        (
            {"packing": "padded:order=falling", "groups": "1k"},
            "--packing: option 'order' of packing 'padded' must be random or sorted, got 'falling'",
        ),
        (
            {"packing": "padded:batch=-1", "groups": "1k"},
            "--packing: option 'batch' must be at least 0 and at most 2147483647, got -1",
        ),
    ],
)
def test_options_that_do_not_fit(options, message):
    with pytest.raises(ConfigError) as error:
        resolve(PlanConfig(gpus=1, **options))
    assert str(error.value) == message


def test_padded_batches_are_never_written(tmp_path):
    """Whatever else is wrong with the options, no change of them helps."""
    with pytest.raises(ConfigError) as error:
        require_plan(PlanConfig(gpus=1, groups="1k,2k", packing="padded:batch=3"))
    never = (
        "--packing padded:batch=3 makes padded batches, which hbpack only compares and never writes; run hbpack "
        "compare --algorithms padded:batch=3/none@longest, or give another packing, such as none for one sample a row"
    )
    assert str(error.value) == never
    lengths = tmp_path / "lengths.txt"
    lengths.write_text("5\n")
    with pytest.raises(ConfigError) as error:
        stats(lengths, gpus=1, groups="1k,2k", packing="padded:batch=3")
    assert str(error.value) == never


def test_padded_batches_are_compared_as_the_base_of_a_table():
    """Balances that exchange samples are left out; other packings have them."""
    base = resolve(PlanConfig(gpus=2, groups="1k", packing="padded:batch=3", balance="none"))
    names = [row.name for row in default_rows(base)]
    assert {"padded:batch=3", "padded:batch=3/sort", "isf"} <= set(names)
    assert not [name for name in names if name.endswith("refine")]
    assert [row.name for row in parse_rows("bfd/refine", base)] == ["bfd/refine"]
    with pytest.raises(ConfigError) as error:
        parse_rows("padded/refine", resolve(PlanConfig(gpus=2, groups="1k")))
    assert str(error.value) == (
        "--algorithms: row 'padded/refine': packing 'padded' pads whole batches, so it cannot exchange samples; give "
        "--balance sort, window:K or none, without +refine"
    )
