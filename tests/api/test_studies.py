"""`stats`, `compare` and `simulate`: what the commands give as JSON, and tables in a notebook."""

from __future__ import annotations

import json
import re
from html import unescape
from html.parser import HTMLParser

import numpy as np
import pytest

import packer_cli as hbpack
from packer_cli.cli.main import main
from packer_cli.format.records import json_values
from tests.api.conftest import GROUPS
from tests.cli_runner import run

WORDS = ("--groups", GROUPS["groups"], "--gpus", GROUPS["gpus"])
MEASURED = {"seconds", "peak_bytes"}
"""What differs from run to run."""


@pytest.fixture(scope="module")
def file(lengths, tmp_path_factory):
    path = tmp_path_factory.mktemp("lengths") / "lengths.npy"
    np.save(path, lengths)
    return path


def same(values):
    """JSON values without what is measured."""
    values = json.loads(values) if isinstance(values, str) else json.loads(json.dumps(values))
    for row in values.get("comparison", values).get("rows", ()):
        for name in MEASURED:
            row.pop(name, None)
    return values


@pytest.fixture(scope="module")
def comparison(lengths, model):
    return hbpack.compare(
        lengths, algorithms="isf,bfs/none", sort="-abr", model=model, gpu="h100", workers=1, **GROUPS
    )


def test_lengths_alone(lengths, file, command):
    assert same(hbpack.stats(lengths).values()) == same(command("stats", file, "--json").stdout)


def test_a_comparison(comparison, file, model, command):
    words = ("--algorithms", "isf,bfs/none", "--sort", "-abr", "--model", model, "--gpu", "h100", "--workers", 1)
    assert same(comparison.values()) == same(command("compare", file, *WORDS, *words, "--json").stdout)
    assert [row.name for row in comparison.rows] == ["bfs/none", "isf"]


def test_groups(lengths, file, model, command, capfd):
    options = {"model": model, "gpu": "h100", "gpus": 8}
    found = hbpack.groups(lengths, **options)
    assert capfd.readouterr().out == ""
    done = command("groups", file, "--model", model, "--gpu", "h100", "--gpus", 8, "--json")
    assert json.loads(json.dumps(json_values(found))) == json.loads(done.stdout)
    assert hbpack.plan(lengths, groups=found.groups, gpus=8).config.groups
    with pytest.raises(hbpack.HbpackError, match="--global-tokens has no effect on hbpack groups, which finds the"):
        hbpack.groups(lengths, global_tokens="64k", **options)
    with pytest.raises(hbpack.HbpackError, match="--strategy has no effect on hbpack groups"):
        hbpack.groups(lengths, strategy="hbp", **options)
    with pytest.raises(hbpack.HbpackError, match="has no option 'groups'"):
        hbpack.groups(lengths, groups="8k:1", **options)


def test_a_simulation(lengths, packed, model, command):
    words = ("--model", model, "--gpu", "h100", "--step-seconds", 0.5, "--json")
    done = command("simulate", packed.path, *words)
    assert done.code == 0, done.stderr
    for plan in (packed, packed.plan(), packed.path, packed.path / "plan.arrow"):
        found = hbpack.simulate(plan, model=model, gpu="h100", step_seconds=0.5)
        assert same(found.values()) == same(done.stdout)
    of_lengths = hbpack.simulate(hbpack.plan(lengths, **GROUPS), model=model, gpu="h100")
    assert of_lengths.overall.num_gpus == 8


def test_strategies_simulated(lengths, file, model, command):
    words = ("--algorithms", "isf", "--model", model, "--gpu", "h100", "--workers", 1, "--json")
    found = hbpack.simulate(lengths, algorithms="isf", model=model, gpu="h100", workers=1, **GROUPS)
    assert same(found.values()) == same(command("simulate", file, *WORDS, *words).stdout)


@pytest.mark.parametrize(
    ("function", "options", "message"),
    [
        (hbpack.compare, {"strategies": "all", "algorithms": "isf"}, "--strategies and --algorithms do not go"),
        (hbpack.compare, {"sort": "beauty"}, "--sort: there is no column 'beauty'; columns: "),
        (hbpack.compare, {"sort": "epoch"}, "--sort epoch needs --model CONFIG.JSON"),
        (hbpack.compare, {"workers": 0}, "--workers must be at least 1, got 0"),
        (hbpack.compare, {"bound": "ip"}, "--bound must be one of 'l2' or 'lp', got 'ip'"),
        (hbpack.compare, {"append_eos": "auto"}, "--append-eos is for a corpus; give --tokenizer with it, or leave"),
        (hbpack.compare, {"tokenizer": "x"}, "--tokenizer is for a corpus; lengths have no text, so leave it out"),
        (hbpack.simulate, {}, "hbpack simulate needs --model CONFIG.JSON --gpu NAME"),
        (hbpack.simulate, {"model": "m", "gpu": "h100", "step_seconds": -1}, "--step-seconds must be at least 0"),
        (hbpack.stats, {"groups": None}, "--gpus is for planning lengths, which also needs --groups; give it, or"),
        (hbpack.report, {"gpus": None}, "--groups is for planning lengths, which also needs --gpus; give it, or"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_one_line(function, options, message):
    with pytest.raises(hbpack.HbpackError) as error:
        function([5, 6], **{**GROUPS, **options})
    assert str(error.value).startswith(message)


def test_options_without_effect_on_a_plan(packed, lengths, model):
    path = str(packed.path)
    with pytest.raises(hbpack.HbpackError) as error:
        hbpack.simulate(path, model=model, gpu="h100", seed=1)
    needs = "give --groups and --gpus, or leave --seed out"
    assert str(error.value) == f"--seed is for making plans, and {path!r} is already planned; {needs}"
    with pytest.raises(hbpack.HbpackError, match="--groups is for making plans, and this is already planned; leave"):
        hbpack.simulate(packed, model=model, gpu="h100", **GROUPS)
    with pytest.raises(hbpack.HbpackError) as error:
        hbpack.simulate(lengths, model=model, gpu="h100")
    assert str(error.value) == (
        "lengths are not a plan; give --groups and --gpus to plan them in every way, or plan() them first"
    )


class Tables(HTMLParser):
    """The cells of the rows of all tables; fails where a tag is not closed."""

    def __init__(self, text):
        super().__init__()
        self.rows, self.open = [], []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] in ("td", "th"):
            self.rows[-1][-1] += data


def test_a_notebook_shows_tables(packed, comparison, lengths, model):
    plan = hbpack.plan(lengths, **GROUPS)
    shown = [
        (plan, ["g0-1024-sp1", "g1-8192-sp4", "all", "baseline"]),
        (plan.iterations(), ["0"]),
        (packed, ["GPUs", "groups", "all", "packs"]),
        (packed.stats(), ["all", "PR: padding"]),
        (comparison, ["isf", "bfs/none"]),
        (hbpack.simulate(plan, model=model, gpu="h100"), ["1k:1", "8k:4", "all", "baseline"]),
    ]
    for result, names in shown:
        text = result._repr_html_()
        rows = Tables(text).rows
        assert set(names) <= {cell for row in rows for cell in row}
        assert len({len(row) for row in rows}) <= 4
        # Nothing that is unreadable on a dark page: no color of text or background.
        assert not re.search(r"[;\"]color:|background:(?!none)|background-color", text)


def test_python_prints_the_tables_of_the_command(packed, comparison):
    assert run(main, "stats", packed.path).stdout.startswith(repr(packed.stats()))
    for row in comparison.rows:
        line = next(line for line in repr(comparison).splitlines() if line.startswith(f" {row.name} "))
        assert f"{row.overall.num_packs:,}" in line.split()


@pytest.mark.parametrize("name", ["plan.arrow", "hbpack.json"])
def test_a_file_of_a_set_stands_for_it(packed, name):
    assert repr(hbpack.stats(packed.path / name)) == repr(hbpack.stats(packed.path))


def test_a_report(lengths, packed, model, command, tmp_path):
    words = ("--model", model, "--gpu", "h100", "--strategies", "naive", "--workers", 1)
    options = {"model": model, "gpu": "h100", "strategies": "naive", "workers": 1}
    done = command("report", packed.path, *words, "-o", tmp_path / "page.html", "--json")
    printed = json.loads(done.stdout)
    assert printed["output"] == str(tmp_path / "page.html")
    assert printed["num_bytes"] == (tmp_path / "page.html").stat().st_size
    found = hbpack.report(packed, **options, output=tmp_path / "same.html")
    assert (tmp_path / "same.html").read_bytes() == (tmp_path / "page.html").read_bytes()
    assert same(found.values()) == same(printed | {"output": str(tmp_path / "same.html")})
    assert same(printed["comparison"]) == same(found.values()["comparison"])
    assert [row["name"] for row in printed["comparison"]["rows"] if row["is_own"]] == ["balanced"]
    plan = hbpack.report(packed.plan(), **options)
    assert plan.values()["stats"] == printed["stats"]
    assert plan.next_steps == tuple(printed["next_steps"])
    alone = hbpack.report(lengths)
    assert list(alone.charts) == ["lengths-by-source", "lengths-by-tokens"]
    assert alone.values()["stats"] == hbpack.stats(lengths).values()
    with pytest.raises(hbpack.HbpackError, match="--groups is for making plans, and this is already planned; leave"):
        hbpack.report(packed.plan(), **GROUPS)


def test_a_notebook_draws_charts(lengths, model):
    found = hbpack.report(hbpack.plan(lengths, **GROUPS), model=model, gpu="h100", strategies="none")
    assert {"lengths-by-group", "packs-0", "work-after", "series", "epochs", "timeline-after"} <= set(found.charts)
    for chart in found.charts.values():
        bundle = chart._repr_mimebundle_()
        assert bundle["text/plain"] == f"<Chart {chart.name}: {chart.title}>"
        spec = json.dumps(bundle["application/vnd.vegalite.v5+json"], allow_nan=False)
        assert "var(--" not in spec
        assert len(spec) < 200_000
        assert json.loads(spec)["title"]["text"] == chart.title
    rows = Tables(found._repr_html_()).rows
    assert [row[0] for row in rows if row[0][:7] in ("Waiting", "Padding")] == ["Waiting (ABR)", "Padding (PR)"]
    assert all(step in unescape(found._repr_html_()) for step in found.next_steps)
