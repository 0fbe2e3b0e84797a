"""Plans of a token store of items: what is written, listed and counted, and that it is read again."""

from __future__ import annotations

import json
import math
import re

import numpy as np
import pytest

import packer_cli
from packer_cli.cli.main import main
from packer_cli.errors import ConfigError, RunError
from packer_cli.format.constants import ITEM_VALUES
from packer_cli.format.trees import PAIR, SAMPLE, TURNS
from packer_cli.loader import PackedDataset
from packer_cli.shards.plan_file import read_plan, read_plan_header
from packer_cli.tables.stats import counts_table
from tests.cli_runner import run
from tests.tokens.item_stores import Item, make_item_store

OPTIONS = {"groups": "64:1", "gpus": 2}


def branch(shared, own, loss_from):
    ids = [*range(shared), *(50 + own + k for k in range(own))]
    return ids, [float(place >= loss_from) for place in range(len(ids))]


def pair(shared, chosen, rejected):
    values = {"margin": 0.5, "ref_chosen_logps": -1.5, "ref_rejected_logps": -2.5}
    return Item(PAIR, [branch(shared, chosen, shared), branch(shared, rejected, shared)], values=values)


ITEMS = [
    pair(30, 8, 9),
    pair(30, 5, 60),  # Its rejected completion is too long.
    pair(70, 4, 5),  # Its prompt is.
    Item(SAMPLE, [branch(0, 20, 4)]),
    Item(TURNS, [branch(10 * turn, 18, 10 * turn) for turn in range(1, 6)]),
    *(pair(10 + k, 5, 6) for k in range(12)),
]


@pytest.fixture
def source(tmp_path):
    make_item_store(tmp_path / "set" / "tokens", [[ITEMS[:3], ITEMS[3:]]])
    return tmp_path / "set"


def reasons(folder):
    return [json.loads(line) for line in (folder / "rejected.jsonl").read_text().splitlines()]


def test_a_plan_of_items_is_written_and_read_again(source, tmp_path, caplog):
    caplog.set_level("INFO", "hbpack")
    out = tmp_path / "out"
    planned = packer_cli.plan(source, output=out, max_path_tokens="none", **OPTIONS)
    plan, loss = read_plan(out / "plan.arrow", check=True)
    trees = plan.pieces
    assert plan.limits == (100, 2**31 - 1)
    for piece, item in enumerate(plan.pieces.sample.tolist()):  # As the branches' masks say, without first tokens.
        first, stop, depth = trees.first_branch[piece], trees.stop_branch[piece], trees.depth[piece]
        masks = [mask[1:depth] for _, mask in ITEMS[item].branches[first:stop]]
        assert loss.tokens[piece] == sum(map(sum, masks))
    rows = planned.iterations()
    assert sum(each.attention_work for row in rows for each in row.micro_batches) == trees.work.sum()
    assert sum(rows.table()["attention_work"].to_pylist()) == trees.work.sum()
    counts = planned.counts
    assert (counts.items.pairs, counts.items.pairs_cut, counts.items.pairs_left_out) == (14, 1, 1)
    assert (counts.items.conversations, counts.items.conversations_divided, counts.items.turns) == (1, 1, 5)
    assert counts.tokens == plan.pieces.length.sum() == counts.trees.tokens_unique
    table = dict(counts_table(counts).rows)
    assert (table["items"], table["conversations divided"]) == ("17", "1")
    assert not {"samples", "split", "samples split"} & table.keys()
    assert [each["line"] for each in reasons(out)] == [2, 3, 5]
    assert "1 pair cut off, 1 pair left out, 1 conversation divided, 1 turn cut off; " in caplog.text
    assert "1 pair that is cut off loses its ref_chosen_logps and ref_rejected_logps" in caplog.text
    assert read_plan_header(out / "plan.arrow").config.max_path_tokens == "none"
    before = (out / "plan.arrow").read_bytes()
    packer_cli.plan(source, output=out, max_path_tokens="none", **OPTIONS)
    assert "the plan is up to date" in caplog.text
    (out / "plan.arrow").unlink()
    packer_cli.plan(source, output=out, max_path_tokens="none", **OPTIONS)
    assert (out / "plan.arrow").read_bytes() == before


def test_pairs_that_are_cut_off_lose_what_a_reference_model_gave_them(source, tmp_path):
    """Its log-probabilities were of all tokens; the margin stays."""
    out = tmp_path / "out"
    packer_cli.plan(source, output=out, max_path_tokens="none", **OPTIONS)
    assert run(main, "write", out).code == 0
    pieces = read_plan(out / "plan.arrow")[0].pieces
    found = {}
    for rank in range(OPTIONS["gpus"]):
        for batch in PackedDataset(out, rank, OPTIONS["gpus"], format="tree"):
            first = batch["item_branches"].cumsum(0) - batch["item_branches"]
            values = zip(*(batch[name].tolist() for name in ITEM_VALUES), strict=True)
            found |= dict(zip(batch["item_ids"][first].tolist(), values, strict=True))
    whole, none = (0.5, -1.5, -2.5), math.nan
    for item, depth in zip(pieces.sample.tolist(), pieces.depth.tolist(), strict=True):
        wanted = (none,) * 3 if ITEMS[item].kind != PAIR else whole if depth == 2**31 - 1 else (0.5, none, none)
        assert found[item] == pytest.approx(wanted, nan_ok=True)
    assert sum(math.isnan(found[item][1]) for item in found if ITEMS[item].kind == PAIR) == 1
    assert run(main, "verify", out).code == 0


def test_the_packing_of_items_is_written_down(source, tmp_path):
    """Where none is given it is isf, of validation sets, too."""
    found = []
    for options in ({}, {"packing": "bfs"}):
        planned = packer_cli.plan(source, output=tmp_path / "out", validation=3, **options, **OPTIONS)
        aside = read_plan_header(tmp_path / "out" / "validation" / "plan.arrow")
        found.append((planned.config.packing, aside.config.packing))
    assert found == [("isf", "isf"), ("bfs", "isf")]
    planned = packer_cli.plan(source, **OPTIONS)
    assert planned.config.packing == planned.stats().packing == "isf"
    assert "planned with strategy balanced, packing isf" in planned._repr_html_()


def test_weights_and_validation_take_whole_items(source, tmp_path):
    out = tmp_path / "out"
    planned = packer_cli.plan(source, output=out, validation=3, **OPTIONS)
    aside = read_plan(out / "validation" / "plan.arrow", check=True)[0]
    ours = read_plan(out / "plan.arrow", check=True)[0]
    assert planned.counts.set_aside == 3
    assert not np.intersect1d(aside.pieces.sample, ours.pieces.sample).size
    assert aside.limits == ours.limits == (100, 200)


def test_drop_and_error(source, tmp_path):
    planned = packer_cli.plan(source, output=tmp_path / "out", overflow="drop", max_path_tokens="none", **OPTIONS)
    assert planned.counts.dropped == 3
    assert [each["line"] for each in reasons(tmp_path / "out")] == [2, 3, 5]
    assert all(each["reason"].endswith("; it is left out") for each in reasons(tmp_path / "out"))
    with pytest.raises(
        RunError, match=r"file-0:2: the pair has 96 tokens, over the largest group's 64 \(3 such items"
    ):
        packer_cli.plan(source, output=tmp_path / "other", overflow="error", max_path_tokens="none", **OPTIONS)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"validation": 17}, "--validation 17 leaves nothing to train on: there are 17 items, and equal ones stay"),
        ({"validation": "0.0001%"}, "sets aside none of 17 items; give a larger share, or a number of items, such as"),
        ({"overflow": "drop", "groups": "8:1"}, "all items take more than 8 tokens, and --overflow drop leaves"),
    ],
)
def test_errors_count_items(source, tmp_path, options, why):
    with pytest.raises(RunError, match=re.escape(why)):
        packer_cli.plan(source, output=tmp_path / "out", **OPTIONS | options)


def test_stats_say_what_sharing_saves(source, tmp_path):
    whole = packer_cli.stats(source)
    assert ">items<" in whole._repr_html_()
    assert whole.trees.tokens_flat == sum(len(ids) for item in ITEMS for ids, _ in item.branches)
    assert whole.trees.tokens_unique == whole.lengths.num_tokens < whole.trees.tokens_flat
    assert whole.trees.attention_flat == sum(len(ids) ** 2 for item in ITEMS for ids, _ in item.branches)
    packer_cli.plan(source, output=tmp_path / "out", **OPTIONS)
    planned = packer_cli.stats(tmp_path / "out")
    assert planned.masks is None
    assert planned.counts.trees.path_tokens > 0
    assert "Shared prefixes" in planned._repr_html_()


def test_reports_say_that_samples_are_items(source, tmp_path):
    packer_cli.plan(source, output=tmp_path / "out", max_path_tokens="none", **OPTIONS)
    pages = []
    for what in (tmp_path / "out", source):
        packer_cli.report(what, strategies="none", output=tmp_path / "page.html")
        pages.append((tmp_path / "page.html").read_text())
    assert all("A sample is an item here" in page for page in pages)
    assert "Shared prefixes" in pages[0]
    assert "1 conversation divided" in pages[0]
    assert "does not see what comes before it" not in pages[0]  # A piece of a conversation repeats its history.


@pytest.mark.usefixtures("rows_of_this_process")
def test_compare_leaves_out_what_packs_flat_samples_alone(source, caplog):
    caplog.set_level("INFO", "hbpack")
    found = packer_cli.compare(source, strategies="all", **OPTIONS)
    assert {row.name for row in found.rows} == {"balanced", "hbp", "naive", "longalign-packing"}
    assert all(row.overall is not None for row in found.rows)
    assert "padded: cannot pack samples that share prefixes" in caplog.text
    assert caplog.text.count("left out") == 1


@pytest.mark.usefixtures("rows_of_this_process")
def test_compare_names_trees_before_other_reasons(source, caplog):
    """flexsp lacks a profile and wlb --global-tokens, but giving them would not help."""
    caplog.set_level("INFO", "hbpack")
    found = packer_cli.compare(source, strategies="balanced,flexsp:all,wlb", max_samples=8, **OPTIONS)
    assert [row.name for row in found.rows] == ["balanced"]
    assert "left out flexsp:all, wlb: cannot pack samples that share prefixes" in caplog.text
    with pytest.raises(ConfigError, match=r"^--strategy wlb does not work with preference pairs"):
        packer_cli.compare(source, strategies="flexsp:all,wlb", **OPTIONS)


@pytest.mark.usefixtures("rows_of_this_process")
def test_compare_leaves_out_packings_of_flat_samples(source, caplog):
    caplog.set_level("INFO", "hbpack")
    found = packer_cli.compare(source, algorithms="bfd,wrap,decompose,padded", **OPTIONS)
    assert [row.name for row in found.rows] == ["bfd"]
    assert "left out wrap, decompose: would cut samples that share prefixes" in caplog.text
    assert "left out padded/none: would pad samples that share prefixes" in caplog.text
    with pytest.raises(
        ConfigError, match=r"^--packing wrap does not work with preference pairs, groups or --turns branch: it would"
    ):
        packer_cli.compare(source, algorithms="wrap", **OPTIONS)


@pytest.mark.usefixtures("rows_of_this_process")
@pytest.mark.parametrize(("options", "own"), [({}, "isf"), ({"packing": "bfs"}, "bfs")])
def test_compare_takes_the_packing_of_items(source, options, own):
    found = packer_cli.compare(source, algorithms="/none,bfs,isf", **options, **OPTIONS)
    assert [row.name for row in found.rows if row.is_own] == [own]
    assert found.rows[0].name == f"{own}/none"
    assert found.config.packing == own


@pytest.mark.parametrize("overflow", ["split", "truncate"])
def test_where_no_cut_fits_it_says_so(overflow, tmp_path):
    make_item_store(tmp_path / "set" / "tokens", [[[pair(70, 4, 5)]]])
    expected = "all items are over the largest group's 64, and no cut that fits leaves each branch a loss token; give"
    with pytest.raises(RunError, match=expected):
        packer_cli.plan(tmp_path / "set", output=tmp_path / "out", overflow=overflow, **OPTIONS)
