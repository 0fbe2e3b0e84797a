"""`--strategy hydraulis` through the commands."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tests.cli.test_groups import MODEL

STEPS = ("--global-tokens", "40k")


@pytest.fixture
def planned(tmp_path):
    """The options of a plan of up to 8K tokens on 8 GPUs."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps(MODEL))
    return ("--strategy", "hydraulis", "--model", path, "--gpu", "h100", "--gpus", 8)


@pytest.fixture
def lengths(tmp_path):
    random = np.random.default_rng(0)
    np.save(tmp_path / "lengths.npy", np.concatenate([random.integers(50, 900, 400), random.integers(1000, 8193, 40)]))
    return tmp_path / "lengths.npy"


def test_a_set_is_packed_checked_and_predicted(hbpack, pack, chats, planned, tmp_path):
    done, out = pack(chats, "--groups", "2k", *planned, *STEPS, "--epochs", 2), tmp_path / "out"
    assert done.code == 0, done.stderr
    assert "Imbalances of pipelines" in done.stdout
    assert hbpack("verify", out).code == 0
    manifest = json.loads((out / "hbpack.json").read_text())
    assert manifest["lockstep"] == 1
    found = json.loads(hbpack("stats", out, "--json").stdout)["overall"]
    assert found["packing_between"] >= 1
    assert found["packing_within"] >= 1
    assert 0 <= found["sampling_within"] <= 1
    simulated = hbpack("simulate", out, *planned[2:6], "--json")
    assert simulated.code == 0, simulated.stderr
    assert json.loads(simulated.stdout)["overall"]["seconds"] > 0
    assert hbpack("show", out).code == 0
    again = hbpack("rebalance", out, "--gpus", 16)
    assert again.code == 2
    assert again.stderr == (
        "error: --strategy hydraulis divides the GPUs of each step among pipelines for the samples of that step, "
        "which rebalance cannot change; pack again with --gpus 16\n"
    )


def test_a_set_is_packed_as_published(hbpack, pack, chats, planned, tmp_path):
    done, out = pack(chats, "--groups", "2k", *planned, *STEPS, "--packing", "published"), tmp_path / "out"
    assert done.code == 0, done.stderr
    assert hbpack("verify", out).code == 0
    assert hbpack("stats", out).code == 0
    model = ("--model", planned[3], "--gpu", "h100")
    assert hbpack("report", out, *model, "--output", tmp_path / "report.html").code == 0
    assert "packing published" in (tmp_path / "report.html").read_text(encoding="utf-8")
    again = hbpack("rebalance", out, "--gpus", 16)
    assert again.code == 2
    assert "which rebalance cannot change; pack again with --gpus 16" in again.stderr
    other = pack(chats, "--groups", "2k", *planned, *STEPS, "--packing", "bfd", output=tmp_path / "other")
    assert other.code == 2
    assert other.stderr == "error: --packing: unknown packing algorithm 'bfd'; known: search, published\n"


def test_equal_options_give_equal_bytes(pack, chats, planned, tmp_path):
    plans = []
    for name in ("one", "other"):
        out = tmp_path / name
        done = pack(chats, "--groups", "2k", *planned, *STEPS, output=out)
        assert done.code == 0, done.stderr
        plans.append((out / "plan.arrow").read_bytes())
    assert plans[0] == plans[1]


def test_groups_shows_the_pipelines_and_the_layouts(hbpack, lengths, planned):
    done = hbpack("groups", lengths, *planned, *STEPS)
    assert done.code == 0, done.stderr
    assert "Kinds of pipelines" in done.stdout
    assert "Layouts of 8 GPUs that the steps choose from" in done.stdout
    found = json.loads(hbpack("groups", lengths, *planned, *STEPS, "--json").stdout)
    gpus = {scheme["name"]: scheme["num_gpus"] for scheme in found["schemes"]}
    for layout in found["layouts"]:
        assert sum(number * gpus[name] for name, number in layout["pipelines"].items()) == 8
    assert sum(layout["fastest"] for layout in found["layouts"]) == pytest.approx(1)
    assert found["layouts"][0]["longest"] >= np.load(lengths).max()
    assert found["layouts"][0]["step_seconds"] >= found["step_seconds"]


def test_groups_shows_the_published_layouts(hbpack, lengths, planned):
    done = hbpack("groups", lengths, *planned, *STEPS, "--packing", "published")
    assert done.code == 0, done.stderr
    assert " --strategy hydraulis --packing published --groups " in done.stderr + done.stdout
    asked = (*planned, *STEPS, "--json")
    ours, theirs = (
        json.loads(hbpack("groups", lengths, *asked, "--packing", packing).stdout)
        for packing in ("search", "published")
    )
    assert theirs["step_seconds"] >= ours["step_seconds"]
    assert theirs["layouts"][0]["longest"] >= np.load(lengths).max()
    # The steps of the plan are these.
    options = (*planned, *STEPS, "--groups", theirs["layouts"][0]["longest"], "--packing", "published")
    assert hbpack("stats", lengths, *options).code == 0


def test_a_number_of_gpus_that_no_layout_divides(hbpack, lengths, planned):
    done = hbpack("stats", lengths, "--groups", "8k", *planned[:-1], 3, *STEPS)
    assert done.code == 2
    assert done.stderr == (
        "error: --strategy hydraulis: no layout divides 3 GPUs into pipelines of which one holds the longest sample, "
        "8,044 tokens; give a multiple of 2 GPUs\n"
    )


def test_compare_needs_the_tokens_of_a_step(hbpack, lengths, planned):
    done = hbpack("compare", lengths, *planned[2:], "--groups", "8k", "--strategies", "balanced,hydraulis")
    assert done.code == 2
    assert done.stderr == ("error: --strategy hydraulis needs --global-tokens: it plans the samples of each step\n")


def test_layouts_of_no_sample(hbpack, lengths, planned):
    done = hbpack("groups", lengths, *planned, *STEPS, "--max-length", 40, "--overflow", "drop")
    assert (done.code, done.stdout) == (1, "")
    assert done.stderr.splitlines()[-1] == (
        "error: there is nothing to plan: no sample is left; add data, or raise --max-length"
    )


def test_groups_takes_no_other_strategy(hbpack, lengths, planned):
    done = hbpack("groups", lengths, *("hbp" if option == "hydraulis" else option for option in planned))
    assert done.code == 2
    assert done.stderr == (
        "error: --strategy has no effect on hbpack groups, which finds the same groups for all strategies but "
        "hydraulis; leave it out\n"
    )
    done = hbpack("groups", lengths, *planned[2:], *STEPS)
    assert done.code == 2
    assert done.stderr == (
        "error: --global-tokens has no effect on hbpack groups, which finds the same groups for all strategies but "
        "hydraulis; leave it out\n"
    )
    done = hbpack("groups", lengths, *planned[2:], "--packing", "published")
    assert done.code == 2
    assert done.stderr == (
        "error: --packing has no effect on hbpack groups, which finds the same groups for all strategies but "
        "hydraulis; leave it out\n"
    )


@pytest.mark.parametrize("option", [("--group-algorithm", "hbp"), ("--max-groups", 2)])
def test_groups_refuses_what_layouts_do_not_have(hbpack, lengths, planned, option):
    done = hbpack("groups", lengths, *planned, *STEPS, *option)
    assert done.code == 2
    assert done.stderr == (
        f"error: {option[0]} has no effect on hbpack groups --strategy hydraulis, which finds pipelines and layouts "
        "instead of groups; leave it out\n"
    )


@pytest.mark.usefixtures("rows_of_this_process")
def test_compare_plans_it_beside_the_others(hbpack, lengths, planned):
    options = (*planned[2:], "--groups", "8k:2", *STEPS, "--strategies", "balanced,hydraulis", "--workers", 1)
    found = json.loads(hbpack("compare", lengths, *options, "--json").stdout)
    balanced, hydraulis = found["rows"]
    assert (balanced["error"], hydraulis["error"]) == (None, None)
    assert hydraulis["overall"]["num_tokens"] == balanced["overall"]["num_tokens"]
    assert hydraulis["overall"]["packing_between"] >= 1
    assert "packing_between" not in balanced["overall"]
    assert hydraulis["simulation"]["overall"]["seconds"] > 0
