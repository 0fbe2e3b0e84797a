"""Plans of items: what every plan keeps, how full packs are, and what does not go with trees."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packer_cli.config import PlanConfig, validate
from packer_cli.config.resolve import resolve
from packer_cli.errors import ConfigError, PlanError, RunError
from packer_cli.format.trees import GROUP, PAIR, SAMPLE
from packer_cli.plan.build import build_plan
from packer_cli.plan.core.check import check_plan
from packer_cli.plan.core.cut import pieces_to_plan
from packer_cli.plan.core.groups import Group, SizeRule
from packer_cli.plan.core.metrics import least_works, measure, slot_contents
from packer_cli.plan.kernels.balance import parse_balance
from packer_cli.plan.notes import row_notes
from tests.naive import items as naive
from tests.plan.items import NONE, item_trees, items, long_pairs, samples_of, thinking_turns
from tests.requests import request


def planned(trees, *, overflow="split", **options):
    """(plan, request) of items."""
    config = validate(PlanConfig, {"gpus": 8, "overflow": overflow, **options})
    asked = resolve(config, "item").request
    samples = samples_of(trees)
    pieces = pieces_to_plan(samples, SizeRule(asked.groups[-1].capacity, overflow, asked.limits), asked.seed)
    return build_plan(pieces, asked), asked


@given(
    some=st.lists(items(), min_size=1, max_size=30),
    percent=st.sampled_from([NONE, 100, 200]),
    balance=st.sampled_from(["none", "sort", "refine", "window:1+refine"]),
    fill=st.sampled_from(["balanced", "greedy", "longest"]),
    linear=st.sampled_from([0, 5]),
    num_gpus=st.sampled_from([1, 2, 4]),
    packing=st.sampled_from(["isf", "bfs", "ffd", "spfhp", "none"]),
)
def test_every_plan_of_items_passes_the_checker(some, percent, balance, fill, linear, num_gpus, packing):
    trees = item_trees(some)
    samples = samples_of(trees)
    asked = request(
        [Group(capacity=30), Group(capacity=80)], num_gpus, packing,
        balance=parse_balance(balance), fill=fill, linear=linear, limits=(100, percent),
    )  # fmt: skip
    try:
        pieces = pieces_to_plan(samples, SizeRule(80, "truncate", (100, percent)), 0)
    except RunError:  # Nothing is left.
        return
    plan = build_plan(pieces, asked)
    check_plan(plan)
    of_packs = [plan.packs.pieces[a:b] for a, b in zip(plan.packs.offsets, plan.packs.offsets[1:], strict=False)]
    assert sorted(np.concatenate(of_packs).tolist()) == list(range(len(pieces)))
    slots, least = slot_contents(plan), least_works(plan)
    work = [sum(pieces.work[pack].tolist()) for pack in of_packs]
    assert slots.work[slots.pack >= 0].tolist() == [work[pack] for pack in slots.pack if pack >= 0]
    for number in range(plan.epochs[0].num_iterations):  # However an iteration is dealt, its heaviest is in a pack.
        own = slots.pack[(slots.iteration == number) & (slots.pack >= 0)]
        assert least[number] <= max(work[pack] for pack in own)
        assert least[number] >= max(pieces.work[of_packs[pack]].max() for pack in own)
    metrics = measure(plan)
    assert metrics.packs_lower_bound <= metrics.num_packs
    assert metrics.num_tokens == pieces.length.sum()


@pytest.mark.parametrize("paths", ["none", "2x"])
@pytest.mark.parametrize("trees", [long_pairs(20_000), thinking_turns(5_000)], ids=["pairs", "turns"])
def test_packs_are_within_a_hundredth_of_the_bound(trees, paths):
    plan, _ = planned(trees, groups="64k:1", max_path_tokens=paths, gpus=1, balance="sort")
    check_plan(plan)
    metrics = measure(plan)
    assert metrics.packs_lower_bound < metrics.num_packs <= 1.01 * metrics.packs_lower_bound


@pytest.mark.parametrize("trees", [long_pairs(4_000), thinking_turns(1_000)], ids=["pairs", "turns"])
def test_ranks_do_equal_work(trees):
    metrics = measure(planned(trees, groups="64k:1")[0])
    unrefined = measure(planned(trees, groups="64k:1", balance="sort")[0])
    assert metrics.abr < 0.005 + metrics.abr_bound
    assert metrics.abr < unrefined.abr / 2


GROUP_OF_105 = naive.Item(GROUP, [(30, -1), (5, 0), (5, 0), (5, 0)], [1, 2, 3], [31] * 3)  # Path tokens; 45 unique.
PAIR_OF_50 = naive.Item(PAIR, [(40, -1), (5, 0), (5, 0)], [1, 2], [41, 41])
FULL_SAMPLE = naive.Item(SAMPLE, [(55, -1)], [0], [1])


@pytest.mark.parametrize(
    ("items", "capacity", "limit", "expected"),
    [
        ([GROUP_OF_105] * 9, 55, "2x", "9 of 9 rows are full of path tokens (--max-path-tokens 2x) before they are"),
        ([GROUP_OF_105] * 9, 55, "none", ""),
        ([GROUP_OF_105] * 9, 49, "2.2x", ""),  # They are full of tokens, too.
        ([GROUP_OF_105, *[FULL_SAMPLE] * 99], 55, "2x", ""),
        (
            [PAIR_OF_50._replace(first_loss=[1, 1])] * 9,
            95,
            "2x",
            "9 of 9 rows are full of loss tokens, counted once for",
        ),
        ([PAIR_OF_50] * 9, 55, "2x", ""),
    ],
)
def test_rows_that_are_full_before_they_are_full_of_tokens_are_pointed_out(items, capacity, limit, expected):
    plan, _ = planned(item_trees(items), groups=f"{capacity}:1", gpus=1, max_path_tokens=limit)
    notes = row_notes(plan, limit)
    assert [note[: len(expected)] for note in notes] == [expected] * bool(expected)


def test_a_pack_over_a_limit_is_found():
    plan, _ = planned(long_pairs(40), groups="16k:1", gpus=1)
    check_plan(plan)
    with pytest.raises(PlanError, match=r"^pack 0 has \d+ path tokens, over its limit of 1638$"):
        check_plan(replace(plan, limits=(100, 10)))
    more = replace(plan.pieces, loss_terms=plan.pieces.loss_terms + 16_384)
    with pytest.raises(PlanError, match=r"^pack 0 has \d+ loss terms, over its limit of 16384$"):
        check_plan(replace(plan, pieces=more))


@pytest.mark.parametrize(
    ("options", "option", "why"),
    [
        ({"strategy": "flexsp", "global_tokens": "64k"}, "--strategy flexsp", "it cannot pack samples that share"),
        ({"packing": "wrap"}, "--packing wrap", "it would cut samples that share prefixes; choose another, such as"),
        ({"parallel": {"cp": 2}}, "--parallel cp", "it would divide what a token sees among GPUs; share rows with SP"),
        ({"align": 16}, "--align", "it would pad shared prefixes; leave it out"),
        ({"mask": "causal"}, "--mask causal", "it would let an answer or a turn see the others; leave it out"),
    ],
)
def test_what_does_not_go_with_trees_is_refused(options, option, why):
    if options.get("strategy") == "flexsp":
        options = {**options, "model": "examples/sample/model", "gpu": "h100"}
    config = validate(PlanConfig, {"groups": "8k:1", "gpus": 4, **options})
    with pytest.raises(ConfigError) as raised:
        resolve(config, "item")
    expected = f"{option} does not work with preference pairs, groups or --turns branch: {why}"
    assert str(raised.value).startswith(expected)
    assert resolve(config, None).config == resolve(config).config


@pytest.mark.parametrize(
    ("options", "flat", "trees"),
    [
        ({}, "bfs", "isf"),
        ({"packing": "bfs"}, "bfs", "bfs"),
        ({"packing": "ffd"}, "ffd", "ffd"),
        ({"strategy": "hbp"}, "isf", "isf"),
        ({"strategy": "longalign-packing"}, "random", "random"),
    ],
)
def test_the_default_packing_of_trees_is_another(options, flat, trees):
    config = validate(PlanConfig, {"groups": "8k:1", "gpus": 4, **options})
    found = [resolve(config, unit) for unit in ("sample", "item")]
    assert [each.config.packing for each in found] == [each.request.algorithm.name for each in found] == [flat, trees]
    given = found[1].config.with_others()  # What is another plan's default is given for it, too.
    assert resolve(given).config.decisions() == found[1].config.decisions()
    assert given.with_others(strategy="naive").packing == {"longalign-packing": "isf"}.get(
        found[1].config.strategy, trees
    )


def test_the_limit_on_path_tokens_is_of_sets_with_trees():
    config = validate(PlanConfig, {"groups": "8k:1", "gpus": 4, "max_path_tokens": "4x"})
    with pytest.raises(ConfigError, match=r"^--max-path-tokens 4x has no effect: no samples of this set share"):
        resolve(config, "sample")
    kept = resolve(config)
    assert kept.config.decisions()["max_path_tokens"] == "4x"
    flat = validate(PlanConfig, {"groups": "8k:1", "gpus": 4})
    assert resolve(flat, "sample").config.decisions()["max_path_tokens"] is None
    assert resolve(flat, "item").config.decisions()["max_path_tokens"] == "2x"


@pytest.mark.parametrize("value", ["0.5x", "2", "x", "infx", "-1x", "1e9x"])
def test_a_wrong_limit_says_the_rule(value):
    with pytest.raises(ConfigError, match=r"max-path-tokens.*must be a multiple of the capacity of at least 1x"):
        validate(PlanConfig, {"groups": "8k:1", "gpus": 4, "max_path_tokens": value})
